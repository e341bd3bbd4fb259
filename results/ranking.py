"""Ranked tables of a leaderboard: one for each suite and protocol.

Entries are ranked by the suite's first average (in a suite without averages, task by task), as the plain mean over the
lengths that all complete entries of the table have. Entries whose protocols differ (task versions, data, definitions;
for losses the tokenizer too) are not comparable and get tables of their own; partial ones are listed without a rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from longeval.results.fairness import differing_settings
from longeval.results.grid import Entry, Grid, Line
from longeval.results.leaderboard import mean_of, what_is_partial
from longeval.results.statistics import Mean
from longeval.results.tables import comparable, interval, is_percent, number, record, short_name


@dataclass
class _Group:
    """Suites of entries that may be ranked together, and the entries' settings, by the entries' names."""

    suites: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    settings: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    definition: Any = None
    protocol: dict[str, Any] = field(default_factory=dict)

    def admits(self, definition: Any, suite: Mapping[str, Any]) -> bool:
        """Whether the suite is defined alike and agrees on every task that it shares with the others."""
        mine = self.protocol
        return definition == self.definition and all(mine.get(t, p) == p for t, p in suite["protocol"].items())


def ranking_grids(content: Mapping[str, Any]) -> list[Grid]:
    """The ranked tables of a leaderboard file's content."""
    by_suite: dict[str, list[_Group]] = {}
    for entry, name in zip(content["entries"], _names(content["entries"]), strict=True):
        for suite in entry["suites"]:
            groups = by_suite.setdefault(suite["name"], [])
            definition = _definition(entry, suite)
            group = next((group for group in groups if group.admits(definition, suite)), None)
            if group is None:
                groups.append(group := _Group(definition=definition))
            group.suites[name] = suite
            group.settings[name] = _settings(entry)
            group.protocol |= suite["protocol"]
    return [grid for groups in by_suite.values() for index, group in enumerate(groups) for grid in _grids(group, index)]


def _names(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Model names; with the entry's number where several are called alike."""
    names = [entry["model"]["name"] for entry in entries]
    return [name if names.count(name) == 1 else f"{name} #{place}" for place, name in enumerate(names, start=1)]


def _definition(entry: Mapping[str, Any], suite: Mapping[str, Any]) -> Any:
    tokenizer = None if is_percent(suite) else entry["tokenizer_hash"]
    tasks = [(task["name"], task["metric"]) for task in suite["all_tasks"]]
    return suite["unit"], tasks, suite["averages"], tokenizer


def _settings(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """What entries should not differ in."""
    return {"model": {key: entry["model"][key] for key in ("backend", "dtype")}, **entry["settings"]}


def _grids(group: _Group, index: int) -> list[Grid]:
    suite = next(iter(group.suites.values()))
    title = suite["title"] + (f" · protocol {index + 1}, not comparable with the others" if index else "")
    rows = [average["name"] for average in suite["averages"][:1]] or [task["name"] for task in suite["all_tasks"]]
    contests = [_Contest(group, row) for row in rows]
    return [contest.grid(f"{title} · {short_name(contest.row)}") for contest in contests if contest.lengths]


class _Contest:
    """The entries of one group in one row: a suite's average, or a task."""

    def __init__(self, group: _Group, row: str) -> None:
        self.suites = suites = group.suites
        self.differing = differing_settings(group.settings)
        self.row = row
        self.percent = is_percent(next(iter(suites.values())))
        self.scored = {name: _scores(suite, row) for name, suite in suites.items()}
        self.missing = {name: what_is_partial(suite) for name, suite in suites.items()}
        self.lengths = sorted({length for records in self.scored.values() for length in records})
        self.complete = [name for name in suites if not self.missing[name] and self.scored[name]]
        self.common = [n for n in self.lengths if all(_is_whole(self.scored[name].get(n)) for name in self.complete)]
        self.overall = {
            name: Mean.over([mean_of(self.scored[name][n]) for n in self.common], bounded=self.percent)
            for name in self.complete
            if self.common
        }

    def grid(self, title: str) -> Grid:
        """Ranked lines, best first, then the others."""
        labels = {cell["length"]: cell["label"] for suite in self.suites.values() for cell in suite["cells"]}
        ranked = sorted(self.overall, key=self._rank)
        others = [name for name in self.suites if name not in self.overall]
        over = ", ".join(labels[length] for length in self.common)
        ranking = f"ranked by the mean over {over} · 95 % intervals"
        unranked = "no lengths in common: not ranked" if self.complete else "no complete entry: not ranked"
        return Grid(
            title=title,
            stubs=("rank", "model"),
            columns=[*(labels[length] for length in self.lengths), "mean"],
            groups=[[self._line(name, labels) for name in names] for names in (ranked, others) if names],
            notes=[
                ranking if ranked else unranked,
                *(f"{name}: {reason}" for name in others for reason in self.missing[name]),
                *self._failures(),
                *(f"not the same in all entries: {line}" for line in self.differing),
            ],
        )

    def _failures(self) -> list[str]:
        """One line for every entry with failed samples."""
        what = "scored 0" if self.percent else "left out of the mean"
        failed = {name: sum(cell["errors"] for cell in suite["cells"]) for name, suite in self.suites.items()}
        return [f"{name}: failed samples, {what}: {count}" for name, count in failed.items() if count]

    def _rank(self, name: str) -> int:
        """1 for the best; equal means share a rank."""
        values = {other: comparable(mean.value or 0.0) for other, mean in self.overall.items()}
        return 1 + sum((v > values[name]) if self.percent else (v < values[name]) for v in values.values())

    def _line(self, name: str, labels: Mapping[int, str]) -> Line:
        entries = [self._entry(name, length, labels[length]) for length in self.lengths]
        mean = self.overall.get(name)
        if mean is None:
            return Line(("–", name), [*entries, Entry("–")])
        best = self._rank(name) == 1 and len(self.overall) > 1
        figures = self._record(name, None, "mean", mean)
        last = Entry(number(mean.value, self.percent), interval(mean, self.percent), best=best, record=figures)
        return Line((str(self._rank(name)), name), [*entries, last])

    def _entry(self, name: str, length: int, label: str) -> Entry:
        found = self.scored[name].get(length)
        if found is None:
            return Entry("–")
        mean = mean_of(found)
        marks = () if _is_whole(found) else (_extent(found),)
        figures = self._record(name, length, label, mean)
        return Entry(number(mean.value, self.percent), interval(mean, self.percent), marks, record=figures)

    def _record(self, name: str, length: int | None, label: str, mean: Mean) -> dict[str, Any]:
        suite, row = self.suites[name]["name"], short_name(self.row)
        return record(name, suite, "leaderboard", row, length, label, mean, self.percent)


def _scores(suite: Mapping[str, Any], row: str) -> dict[int, Mapping[str, Any]]:
    """The headline numbers or cells of a row that have a score, by length."""
    averages = [r for r in suite["headline"] if r["name"] == row]
    return {
        r["length"]: r for r in averages + [c for c in suite["cells"] if c["task"] == row] if r["score"] is not None
    }


def _is_whole(found: Mapping[str, Any] | None) -> bool:
    """Whether an average has all its tasks, a cell all its samples."""
    return found is not None and (found["tasks"] == found["of"] if "of" in found else found["n"] == found["planned"])


def _extent(found: Mapping[str, Any]) -> str:
    return f"{found['tasks']}/{found['of']}" if "of" in found else f"n={found['n']}/{found['planned']}"

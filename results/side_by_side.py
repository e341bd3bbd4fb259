"""The tables of a comparison: for every task and average one line per checkpoint, columns are lengths."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from longeval.results.compare import Comparison, Tested
from longeval.results.grid import BETTER, WORSE, Entry, Grid, Line
from longeval.results.published import Published
from longeval.results.runs import Run
from longeval.results.significance import LEVEL, POWER, Difference, samples_needed, smallest_visible
from longeval.results.statistics import Mean
from longeval.results.tables import (
    average_marks,
    average_record,
    averages_by_name,
    cell_marks,
    cell_record,
    comparable,
    count_notes,
    interval,
    is_percent,
    length_labels,
    length_summary,
    metrics,
    number,
    record,
    sample_counts,
    scaled,
    short_name,
    shown_averages,
    suite_notes,
    window_note,
)

_DETECT = {True: 5.0, False: 0.05}  # points, nats


def comparison_grids(comparison: Comparison, detect: float | None = None) -> list[Grid]:
    """One table per suite. `detect`: a note says how many samples a difference of so many points (nats) needs."""
    return [_suite_grid(comparison, suite, detect) for suite in comparison.suites]


def _suite_grid(comparison: Comparison, suite: Mapping[str, Any], detect: float | None) -> Grid:
    labels = column_labels(comparison, suite)
    table = _Lines(comparison, suite, labels)
    tasks, averages = suite["tasks"], shown_averages(suite)
    groups = [
        *_sections([table.task(task) for task in tasks]),
        *_sections([table.beside(task, score) for task in tasks for score in task.get("beside", ())]),
        *_sections([table.average(name, kind) for name, kind in averages.items() if kind == "category"]),
        *_sections([table.average(name, kind) for name, kind in averages.items() if kind == "average"]),
    ]
    runs = [run.label for run in comparison.runs if suite["name"] in run.suites]
    return Grid(
        title=f"{suite['title']} · {runs[0] if len(runs) == 1 else f'{len(runs)} checkpoints'}",
        stubs=("task", "checkpoint"),
        columns=list(labels.values()),
        groups=groups,
        notes=_notes(comparison, suite, detect),
        merged=1,
    )


def _sections(rows: Sequence[list[Line]]) -> list[list[Line]]:
    """Groups of a table's lines: each row's lines, or all together where rows are single lines."""
    filled = [lines for lines in rows if lines]
    if all(len(lines) == 1 for lines in filled):
        filled = [[line for lines in filled for line in lines]] if filled else []
    return filled


def column_labels(comparison: Comparison, suite: Mapping[str, Any]) -> dict[int, str]:
    """All lengths of all runs and published tables; a star where one of the runs is beyond its trained window."""
    labels: dict[int, str] = {}
    for run in comparison.runs:
        for length, label in length_labels(run.info, suite).items():
            labels[length] = max(label, labels.get(length, ""), key=len)
    known = {label.rstrip("*") for label in labels.values()}
    for table in comparison.published:
        labels |= {n: label for n, label in table.labels(suite["name"]).items() if label not in known}
    return dict(sorted(labels.items()))


class _Lines:
    """Makes a suite's lines."""

    def __init__(self, comparison: Comparison, suite: Mapping[str, Any], labels: Mapping[int, str]) -> None:
        self.comparison = comparison
        self.suite = suite
        self.labels = labels
        self.tested = comparison.tested[suite["name"]]
        self.runs = [run for run in comparison.runs if suite["name"] in run.suites]
        self.measured = {length for run in comparison.runs for length in length_labels(run.info, suite)}

    def task(self, task: Mapping[str, Any]) -> list[Line]:
        """A task's lines: measured ones, then published ones."""
        percent, name = task["percent"], short_name(task["name"])

        def entry(run: Run, length: int, label: str) -> tuple[Entry, Mean]:
            cell = run.scores.cell(task["name"], length)
            if cell is None:
                return self._absent(length), Mean()
            if not cell.fits:
                return Entry("does not fit"), Mean()
            figures = cell_record(run.label, self.suite["name"], cell, label, percent)
            return self._entry(cell.mean, cell_marks(cell), figures, percent, task["name"], length, run), cell.mean

        lines = self._measured(name, percent, "", entry)
        if "average" not in shown_averages(self.suite).values():
            lines += self._differences(task["name"], percent)
        return lines + self._published(name)

    def beside(self, task: Mapping[str, Any], score: str) -> list[Line]:
        """The lines of a score that a task has beside its headline: a mean without an interval, not tested."""
        percent, name = task["percent"], f"{short_name(task['name'])} {score}"

        def entry(run: Run, length: int, label: str) -> tuple[Entry, Mean]:
            cell = run.scores.cell(task["name"], length)
            if cell is None:
                return self._absent(length), Mean()
            mean = Mean(cell.scores.get(score))
            figures = record(run.label, self.suite["name"], "score", name, length, label, mean, percent)
            return Entry(number(mean.value, percent), record=figures), mean

        return self._measured(name, percent, "beside", entry)

    def average(self, name: str, kind: str) -> list[Line]:
        """The lines of an average ("average" or "category"): measured ones, then published ones."""
        percent = is_percent(self.suite)

        def entry(run: Run, length: int, label: str) -> tuple[Entry, Mean]:
            averages = run.scores.averages if kind == "average" else run.scores.categories
            average = averages_by_name(averages, self.suite["name"]).get(name, {}).get(length)
            if average is None:
                return self._absent(length), Mean()
            if average.mean.value is None:
                return Entry("–"), Mean()
            figures = average_record(run.label, kind, average, label, percent)
            marks = average_marks(average)
            return self._entry(average.mean, marks, figures, percent, name, length, run), average.mean

        lines = self._measured(name, percent, kind, entry)
        if kind == "category":
            return lines if any(entry.record for line in lines for entry in line.entries) else []
        return lines + self._differences(name, percent) + self._published(name)

    def _differences(self, row: str, percent: bool) -> list[Line]:
        """What every checkpoint is above the baseline in an average (a task, where the suite shows no average), with
        its interval and Cohen's d."""
        lines = []
        for run in self.runs:
            found = [self.tested.get((row, length, run.label)) for length in self.labels]
            if any(found):
                entries = [_difference_entry(one.difference, percent) if one else Entry() for one in found]
                lines.append(Line((short_name(row), f"Δ {run.label}"), entries, "difference"))
        return lines

    def _absent(self, length: int) -> Entry:
        """A cell that this run does not have: "not run" where another run has one of that length."""
        return Entry("not run" if length in self.measured else "")

    def _entry(
        self,
        mean: Mean,
        marks: tuple[str, ...],
        figures: dict[str, Any],
        percent: bool,
        row: str,
        length: int,
        run: Run,
    ) -> Entry:
        tested = self.tested.get((row, length, run.label))
        if tested is not None and tested.significant:
            better = (tested.difference.value > 0) == percent
            marks = (BETTER if better else WORSE, *marks)
        figures |= _tested_record(self.comparison.baseline, tested, percent)
        return Entry(number(mean.value, percent), interval(mean, percent), marks, record=figures)

    def _measured(
        self, name: str, percent: bool, style: str, entry: Callable[[Run, int, str], tuple[Entry, Mean]]
    ) -> list[Line]:
        by_column = [[entry(run, length, label) for run in self.runs] for length, label in self.labels.items()]
        columns = [_with_best(column, percent) for column in by_column]
        return [
            Line((name, self._label(run)), [column[index] for column in columns], style)
            for index, run in enumerate(self.runs)
        ]

    def _label(self, run: Run) -> str:
        return f"{run.label} (baseline)" if len(self.runs) > 1 and run is self.comparison.baseline else run.label

    def _published(self, row: str) -> list[Line]:
        lines = []
        for table in self.comparison.published:
            for model in table.models(self.suite["name"], row):
                entries = [self._published_entry(table, model, row, n, label) for n, label in self.labels.items()]
                lines.append(Line((row, f"{model} (published)"), entries, "published"))
        return lines

    def _published_entry(self, table: Published, model: str, row: str, length: int, label: str) -> Entry:
        found = table.score(model, self.suite["name"], row, label.rstrip("*"))
        if found is None:
            return Entry()
        mean = Mean(found.score)
        name = f"{model} (published)"
        figures = record(name, self.suite["name"], "published", row, length, label, mean, percent=True)
        return Entry(number(mean.value, percent=True), record=figures)


def _with_best(column: Sequence[tuple[Entry, Mean]], percent: bool) -> list[Entry]:
    """Marks the best of several different values of one row and length, unless they are averages of other tasks."""
    values = [comparable(mean.value) for _, mean in column if mean.value is not None]
    extents = {(entry.record or {}).get("tasks") for entry, mean in column if mean.value is not None}
    contested = len(set(values)) > 1 and len(extents) == 1
    best = (max if percent else min)(values) if contested else None
    return [
        replace(entry, best=best is not None and mean.value is not None and comparable(mean.value) == best)
        for entry, mean in column
    ]


def _difference_entry(found: Difference, percent: bool) -> Entry:
    shown = number(found.value, percent)
    around = interval(Mean(found.value, low=found.low, high=found.high), percent)
    effect = "" if found.effect is None else f" d={found.effect:.2f}"
    return Entry(shown if shown.startswith("-") else f"+{shown}", around + effect)


def _tested_record(baseline: Run, tested: Tested | None, percent: bool) -> dict[str, Any]:
    if tested is None:
        return {}
    found = tested.difference
    return {
        "baseline": baseline.label,
        "difference": scaled(found.value, percent),
        "difference_low": scaled(found.low, percent),
        "difference_high": scaled(found.high, percent),
        "effect": found.effect,
        "p": found.p,
        "p_corrected": tested.corrected,
        "pairs": found.pairs,
        "test": found.test,
    }


def _notes(comparison: Comparison, suite: Mapping[str, Any], detect: float | None) -> list[str]:
    runs = [run for run in comparison.runs if suite["name"] in run.suites]
    several = len(runs) > 1
    cells = {run.label: [c for c in run.scores.cells if c.task.startswith(suite["name"] + "/")] for run in runs}
    counts = {label: sample_counts(of_run) for label, of_run in cells.items()}
    alike = len(set(counts.values())) == 1
    shown = counts[runs[0].label] if alike else ", ".join(f"{label}: {count}" for label, count in counts.items())
    best = " · best in bold" if several else ""
    lines = [f"{shown} · {metrics(suite)} with 95 % intervals{best}"]
    without = [run.label for run in comparison.runs if run not in runs]
    if without:
        lines.append(f"suite not run: {', '.join(without)}")
    lines += _test_notes(comparison, suite, detect)
    about: dict[str, list[str]] = {}
    for run in runs:
        own = run.suites[suite["name"]]
        summary = run.scores.summaries.get(suite["name"])
        for line in [
            *window_note(run.info, own),
            *suite_notes(own),
            *count_notes(cells[run.label], is_percent(suite)),
            *own.get("notes", []),
            *([length_summary(summary)] if summary else []),
        ]:
            about.setdefault(line, []).append(run.label)
    for line, labels in about.items():
        lines.append(line if len(labels) == len(runs) else f"{', '.join(labels)}: {line}")
    for table in comparison.published:
        if table.labels(suite["name"]):
            lines += [f"published: {table.source}", *table.notes.get(suite["name"], [])]
    return lines


def _test_notes(comparison: Comparison, suite: Mapping[str, Any], detect: float | None) -> list[str]:
    tested = comparison.tested[suite["name"]]
    if not tested:
        return []
    tests = ", ".join(dict.fromkeys(one.difference.test for one in tested.values()))
    unpaired = dict.fromkeys(label for (_, _, label), one in tested.items() if not one.difference.pairs)
    paired = len(unpaired) < len({label for _, _, label in tested})
    lines = [
        f"{BETTER} better, {WORSE} worse than {comparison.baseline.label}: p < {LEVEL} after Holm's correction over "
        f"the table's tests, {len(tested)} in all ({tests})",
        f"Δ: difference to {comparison.baseline.label} on the samples in common with its 95 % interval and Cohen's d"
        + (" (over the deviation of the paired differences)" if paired else ""),
    ]
    if unpaired:
        lines.append(f"no samples in common with {comparison.baseline.label}: {', '.join(unpaired)}")
    return lines + _power_note(comparison, suite, detect)


def _power_note(comparison: Comparison, suite: Mapping[str, Any], detect: float | None) -> list[str]:
    """What differences the table can show: in a typical cell, and in its first average."""
    percent = is_percent(suite)
    wanted = detect or _DETECT[percent]
    tasks = {task["name"] for task in suite["tasks"]}
    places = {"a cell": tasks, "the average": {average["name"] for average in suite["averages"][:1]}}
    parts = []
    for what, rows in places.items():
        tested = comparison.tested[suite["name"]].items()
        paired = [one.difference for (row, _, _), one in tested if row in rows and one.difference.pairs]
        squares = [d.standard_error**2 * d.pairs for d in paired if d.standard_error is not None]
        if not squares or not any(squares):
            continue
        deviation = math.sqrt(statistics.fmean(squares))
        pairs = statistics.median(difference.pairs for difference in paired)
        visible = number(smallest_visible(deviation, pairs), percent)
        needed = samples_needed(wanted / 100 if percent else wanted, deviation)
        parts.append(f"{visible} in {what} ({pairs:,.0f} samples; {wanted:g} would need {needed:,})")
    unit = "points" if percent else "nats"
    seen = f"a single test at {100 * LEVEL:g} % sees with {100 * POWER:g} % power a difference in {unit} of "
    return [seen + " and ".join(parts)] if parts else []

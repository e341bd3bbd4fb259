"""Published scores that can stand beside measured ones. They are data with a source, and never mixed with runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files

from longeval.errors import UserError, nearest

_TABLES = {"path-paper": "path-paper.json"}


@dataclass(frozen=True)
class PublishedScore:
    """One published number, a fraction. `row`: a short task name or the name of a suite's average."""

    model: str
    suite: str
    row: str
    length: int
    label: str
    score: float


@dataclass(frozen=True)
class Published:
    """A published table: its `source` and what a reader has to know (`notes` by suite)."""

    name: str
    source: str
    notes: dict[str, list[str]]
    scores: list[PublishedScore]

    def models(self, suite: str, row: str) -> list[str]:
        """The models that have scores in a row of a suite."""
        return list(dict.fromkeys(s.model for s in self.scores if (s.suite, s.row) == (suite, row)))

    def labels(self, suite: str) -> dict[int, str]:
        """The suite's lengths."""
        return {score.length: score.label for score in self.scores if score.suite == suite}

    def score(self, model: str, suite: str, row: str, label: str) -> PublishedScore | None:
        """The published number at a length that tables call `label`."""
        at = (model, suite, row, label)
        return next((s for s in self.scores if (s.model, s.suite, s.row, s.label) == at), None)


def load_published(name: str) -> Published:
    """The table called `name`; UserError with the known ones otherwise."""
    if name not in _TABLES:
        raise UserError(f"no published table is called {name!r}{nearest(name, _TABLES)}")
    data = json.loads(files("longeval.results").joinpath(_TABLES[name]).read_text("utf-8"))
    scores = [
        PublishedScore(model, row["suite"], row["row"], length["length"], length["label"], round(percent / 100, 6))
        for row in data["rows"]
        for model, percents in row["percent"].items()
        for length, percent in zip(data["lengths"][row["suite"]], percents, strict=True)
    ]
    return Published(name, data["source"], data["notes"], scores)

"""Leaderboard files: the scores of runs as JSON that anybody can check, merge and rank without the samples.

A file has a version and a JSON Schema (`leaderboard.schema.json`). Every cell comes with n, mean, standard error and
interval, and every suite with the definitions of its averages, so that the headline numbers can be computed again. They
are, whenever a file is read, and a file whose numbers do not follow from its cells is refused. A suite with tasks or
samples missing is partial: it is refused unless partial suites are allowed, and then the file says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from longeval.errors import UserError
from longeval.jsontext import parse_json
from longeval.results.aggregate import Cell, Scores, combine
from longeval.results.runs import Run
from longeval.results.statistics import Mean

NAME, VERSION = "longeval-leaderboard", 1
_SETTINGS = ("chat", "seed", "limit", "limit_tokens", "overflow", "options")


def leaderboard(runs: Sequence[Run], allow_partial: bool = False) -> dict[str, Any]:
    """A leaderboard file's content with one entry for each run. UserError for a partial suite unless allowed."""
    entries = [_entry(run) for run in runs]
    partial = [f"{run.label}: {line}" for run, entry in zip(runs, entries, strict=True) for line in entry["partial"]]
    if partial and not allow_partial:
        raise UserError(f"{'; '.join(partial)}; finish the run, or use --allow-partial, which the file then says")
    return {"format": NAME, "version": VERSION, "entries": entries}


def _entry(run: Run) -> dict[str, Any]:
    decides, info = run.folder.manifest["decides"], run.info
    suites = [_suite(suite, run) for suite in info["suites"]]
    return {
        "model": {"name": Path(info["model"]).name, "trained_length": info.get("trained_length"), **decides["model"]},
        "longeval": decides["longeval"],
        "tokenizer_hash": decides["tokenizer_hash"],
        "settings": {key: decides.get(key) for key in _SETTINGS},
        "created": info.get("created"),
        "partial": [line for suite in suites for line in what_is_partial(suite)],
        "suites": suites,
    }


def _suite(suite: Mapping[str, Any], run: Run) -> dict[str, Any]:
    protocol = run.folder.manifest["decides"]["tasks"]
    labels = {(plan["task"], plan["length"]): plan["label"] for plan in run.info["cells"]}
    names = [task["name"] for task in suite["tasks"]]
    cells = [cell for cell in run.scores.cells if cell.task in names]
    return {
        **suite,
        "protocol": {name: {k: v for k, v in protocol[name].items() if k != "lengths"} for name in names},
        "cells": [{**_flat(asdict(cell)), "label": labels[cell.task, cell.length]} for cell in cells],
        "headline": [_flat(asdict(average)) for average in run.scores.averages if average.suite == suite["name"]],
        "summary": _plain(run.scores.summaries.get(suite["name"])),
    }


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    """A cell or average with its mean's fields beside the others, the value called score."""
    mean = record.pop("mean")
    return {**record, "score": mean.pop("value"), **mean}


def _plain(summary: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if not summary:
        return None
    return {key: asdict(value) if isinstance(value, Mean) else value for key, value in summary.items()}


def what_is_partial(suite: Mapping[str, Any]) -> list[str]:
    """Why a leaderboard suite is partial, one line each; a limit on samples is no reason."""
    lines = []
    tasks, of = len(suite["tasks"]), len(suite["all_tasks"])
    if tasks < of:
        lines.append(f"{suite['name']} is partial: {tasks}/{of} tasks")
    unfinished = [cell for cell in suite["cells"] if cell["fits"] and cell["n"] < cell["planned"]]
    if unfinished:
        cells = f"{len(unfinished)} of {len(suite['cells'])} cells"
        lines.append(f"{suite['name']} is unfinished: fewer samples than planned in {cells}")
    return lines


def check_file(path: Path) -> list[str]:
    """What is wrong with a leaderboard file, one line each; UserError when it is none."""
    return list(problems(_read(path)))


def read_leaderboard(path: Path) -> dict[str, Any]:
    """A valid leaderboard file's content; UserError with its first problem otherwise."""
    content = _read(path)
    if problem := next(problems(content), None):
        raise UserError(f"{path}: {problem}")
    return content


def _read(path: Path) -> dict[str, Any]:
    try:
        content = parse_json(path.read_bytes(), str(path))
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror})") from error
    if not isinstance(content, dict) or content.get("format") != NAME:
        raise UserError(f"{path} is no leaderboard file; `longeval export RUN --format leaderboard` writes one")
    if content.get("version") != VERSION:
        raise UserError(f"{path} is of leaderboard version {content.get('version')!r}; this longeval reads {VERSION}")
    return content


@cache
def schema() -> dict[str, Any]:
    """The JSON Schema of the files."""
    text = files("longeval.results").joinpath("leaderboard.schema.json").read_text("utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def problems(content: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a file's content: against the schema first, then against its own cells."""
    broken = False
    for error in Draft202012Validator(schema()).iter_errors(content):
        broken = True
        yield f"{error.json_path}: {error.message[:200]}"
    if broken:
        return
    for number, entry in enumerate(content["entries"], start=1):
        for problem in _entry_problems(entry):
            yield f"entry {number} ({entry['model']['name']}): {problem}"


def _entry_problems(entry: Mapping[str, Any]) -> Iterator[str]:
    partial = [line for suite in entry["suites"] for line in what_is_partial(suite)]
    if partial != entry["partial"]:
        yield f"it says {entry['partial']} of what is partial, but {partial} follows from its cells"
    for suite in entry["suites"]:
        known = {task["name"] for task in suite["tasks"]}
        if strange := {cell["task"] for cell in suite["cells"]} - known:
            yield f"{suite['name']} has cells of {', '.join(sorted(strange))}, which its tasks do not name"
            continue
        fractions = {task["name"] for task in suite["tasks"] if task["percent"]}
        for cell in suite["cells"]:
            if cell["task"] in fractions and cell["score"] is not None and not 0 <= cell["score"] <= 1:
                yield f"{cell['task']} at {cell['length']} has the score {cell['score']}, which is no fraction"
        yield from _recomputed(suite)


def recompute(suite: Mapping[str, Any]) -> Scores:
    """A suite's averages and summary, computed anew from its cells."""
    return combine([suite], [_cell(cell) for cell in suite["cells"]])


def _cell(record: Mapping[str, Any]) -> Cell:
    own = {name: value for name, value in record.items() if name in Cell.__dataclass_fields__}
    return Cell(**own, mean=mean_of(record))


def mean_of(record: Mapping[str, Any]) -> Mean:
    """The mean that a cell or average of a file says."""
    return Mean(record["score"], *(record[name] for name in ("standard_error", "low", "high", "size", "freedom")))


def _recomputed(suite: Mapping[str, Any]) -> Iterator[str]:
    """Headline numbers that do not follow from the cells: scores exactly, the rest to rounding."""
    again = recompute(suite)
    expected = [_flat(asdict(average)) for average in again.averages]
    if len(expected) != len(suite["headline"]):
        yield f"{suite['name']} has {len(suite['headline'])} headline numbers where its cells give {len(expected)}"
        return
    for given, computed in zip(suite["headline"], expected, strict=True):
        if not _agree(given, computed):
            yield (
                f"{suite['name']} {given['name']} at {given['length']} is {given['score']}, "
                f"but its cells give {computed['score']}"
            )
    summary = _plain(again.summaries.get(suite["name"]))
    if (summary is None) != (suite["summary"] is None):
        yield f"{suite['name']} has a summary over lengths where its cells give none, or none where they give one"
    elif summary is not None:
        for key, value in summary.items():
            given = suite["summary"].get(key)
            if (given != value) if key != "mean_over_lengths" else given["value"] != value["value"]:
                yield f"{suite['name']}: {key} is {given}, but its cells give {value}"


def _agree(given: Mapping[str, Any], computed: Mapping[str, Any]) -> bool:
    if given.keys() != computed.keys():
        return False
    for key, value in computed.items():
        rounded = key not in ("score", "tasks", "of", "length") and isinstance(value, float)
        same = (
            given[key] is not None and math.isclose(given[key], value, rel_tol=1e-9) if rounded else given[key] == value
        )
        if not same:
            return False
    return True


def merge(paths: Iterable[Path]) -> dict[str, Any]:
    """The entries of several valid files in one; an entry that occurs twice is kept once."""
    entries: list[dict[str, Any]] = []
    for path in paths:
        for entry in read_leaderboard(path)["entries"]:
            if entry not in entries:
                entries.append(entry)
    return {"format": NAME, "version": VERSION, "entries": entries}

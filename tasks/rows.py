"""Rows of a benchmark's data files: JSON objects whose place is known, so that bad data is an error that names it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from longeval.errors import UserError


@dataclass(frozen=True)
class DataRow:
    """A JSON object and `where` it stands ("qasper_e.jsonl line 7")."""

    where: str
    record: Mapping[str, Any]

    def get(self, name: str, kind: type[Any]) -> Any:
        """Field `name`, which must be a `kind`. UserError with the place otherwise."""
        if name not in self.record:
            raise UserError(
                f"{self.where}: the row lacks the field {name!r}; it has {', '.join(self.record) or 'none'}"
            )
        value = self.record[name]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise UserError(f"{self.where}: the field {name!r} must be {kind.__name__}, not {type(value).__name__}")
        return value


def json_lines(lines: Iterable[bytes], name: str) -> Iterator[DataRow]:
    """The rows of a JSONL file called `name`. Blank lines are skipped; UserError for anything else than an object."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            where = f"{name} line {number}"
            yield DataRow(where, _object(_parse(line, where), where))


def json_array(content: bytes, name: str) -> Iterator[DataRow]:
    """The rows of a JSON file that is one array of objects; they are called by their number, from 1."""
    records = _parse(content, name)
    if not isinstance(records, list):
        raise UserError(f"{name}: must be a JSON array of objects, not {type(records).__name__}")
    for number, record in enumerate(records, start=1):
        yield DataRow(f"{name} row {number}", _object(record, f"{name} row {number}"))


def _parse(content: bytes, where: str) -> Any:
    try:
        return json.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8 (byte {error.start}); convert the file to UTF-8") from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}" if error.lineno > 1 else f"column {error.colno}"
        raise UserError(f"{where}: not valid JSON ({error.msg}, {place}); mend the file or fetch it again") from error


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{where}: must be a JSON object, not {type(value).__name__}")
    return value

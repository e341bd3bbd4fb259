"""Rows of a benchmark's data files: JSON objects whose place is known, so that bad data is an error that names it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from longeval.errors import UserError
from longeval.jsontext import parse_json


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
        if isinstance(value, str):
            self._check_text(name, value)
        return value

    def _check_text(self, name: str, text: str) -> None:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            place = f"character {error.start} of {name!r}"
            raise UserError(f"{self.where}: unpaired surrogate at {place}; mend the line") from error


def json_lines(lines: Iterable[bytes], name: str) -> Iterator[DataRow]:
    """The rows of a JSONL file called `name`. Blank lines are skipped; UserError for anything else than an object."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            where = f"{name} line {number}"
            yield DataRow(where, _object(parse_json(line, where), where))


def json_array(content: bytes, name: str) -> Iterator[DataRow]:
    """The rows of a JSON file that is one array of objects; they are called by their number, from 1."""
    records = parse_json(content, name)
    if not isinstance(records, list):
        raise UserError(f"{name}: must be a JSON array of objects, not {type(records).__name__}")
    for number, record in enumerate(records, start=1):
        yield DataRow(f"{name} row {number}", _object(record, f"{name} row {number}"))


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{where}: must be a JSON object, not {type(value).__name__}")
    return value

"""The rows of LongBench-E: thirteen `<dataset>_e.jsonl` files in a folder or in the archive `data.zip`."""

from __future__ import annotations

import shutil
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longeval.errors import UserError
from longeval.tasks.corpora import Corpus, hub_answers
from longeval.tasks.longbench_e.protocol import DATASETS
from longeval.tasks.rows import DataRow, json_lines


@dataclass(frozen=True)
class Row:
    """One sample as the file has it. `words`: the file's own count of input, context and answers; buckets go by it."""

    id: str
    input: str
    context: str
    answers: list[str]
    words: int
    classes: list[str] | None


class _Archive(Corpus):
    """LongBench as a user may hold it: the archive or its unpacked files, in `longbench/` or in the folder itself."""

    def locate(self, data_dir: Path | None = None) -> Path | None:
        if data_dir is not None:
            for place in (data_dir, data_dir / "data.zip", data_dir / "data", data_dir / "longbench" / "data"):
                if place.is_file() or any(place.glob("*_e.jsonl")):
                    return place
        return super().locate(data_dir)

    def remedy(self) -> str:
        return f"put data.zip, or its *_e.jsonl files, into --data-dir, or go online for {self.hub_id}"


def _fetch(folder: Path) -> None:
    from huggingface_hub import hf_hub_download

    # A script dataset, which `datasets` no longer runs: the archive that the script reads is taken instead.
    archive = hf_hub_download("THUDM/LongBench", "data.zip", repo_type="dataset", local_files_only=not hub_answers())
    folder.mkdir(exist_ok=True)  # left by a failed attempt
    shutil.copyfile(archive, folder / "data.zip")


LONGBENCH = _Archive(
    name="longbench",
    title="LongBench (v1), of which LongBench-E is the *_e.jsonl files",
    filename="longbench",
    licence="MIT (code and collection; each dataset its own)",
    used_by="longbench_e",
    hub_id="THUDM/LongBench",
    fetch=_fetch,
)


def source_file(dataset: str, data_dir: Path | None) -> Path:
    """The file that holds the dataset: its own JSONL file, or the archive. UserError when there is neither."""
    place = LONGBENCH.require(data_dir)
    if place.is_file():
        return place
    choices = [place / f"{dataset}_e.jsonl", place / "data.zip"]
    if found := next(filter(Path.exists, choices), None):
        return found
    raise UserError(f"{place} holds neither {choices[0].name} nor data.zip; put one of them there")


def read_rows(dataset: str, data_dir: Path | None) -> list[Row]:
    """All rows of the dataset, in file order. UserError naming file and line for bad data."""
    file = source_file(dataset, data_dir)
    if not file.is_file():
        raise UserError(f"{file} is no file; put LongBench's files there")
    if file.suffix == ".jsonl":
        with file.open("rb") as lines:
            rows = [_row(row, dataset) for row in json_lines(lines, str(file))]
    else:
        rows = [_row(row, dataset) for row in _zipped(file, f"{dataset}_e.jsonl")]
    if not rows:
        raise UserError(f"{file}: {dataset} has no rows; fetch LongBench again")
    return rows


def _zipped(archive: Path, filename: str) -> Iterator[DataRow]:
    try:
        with zipfile.ZipFile(archive) as content:
            member = next((name for name in content.namelist() if Path(name).name == filename), None)
            if member is None:
                raise UserError(f"{archive} holds no {filename}; fetch LongBench's data.zip again")
            with content.open(member) as lines:
                yield from json_lines(lines, f"{archive}:{member}")
    except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError) as error:  # broken, encrypted, unknown
        raise UserError(f"{archive}: not a readable zip file ({error}); fetch LongBench's data.zip again") from error


def _row(row: DataRow, dataset: str) -> Row:
    found = Row(
        id=str(row.record.get("_id", "")),
        input=row.get("input", str),
        context=row.get("context", str),
        answers=_strings(row, "answers"),
        words=row.get("length", int),
        classes=_strings(row, "all_classes") if row.record.get("all_classes") is not None else None,
    )
    if not found.answers:
        raise UserError(f"{row.where}: the field 'answers' is empty: there is nothing to score against")
    try:
        for answer in found.answers:
            DATASETS[dataset].metric("", answer, found.classes)
    except UserError as error:  # what the metric needs of a row, said now and not after hours of predictions
        raise UserError(f"{row.where}: {error}") from error
    return found


def _strings(row: DataRow, name: str) -> list[str]:
    values: list[Any] = row.get(name, list)
    if not all(isinstance(value, str) for value in values):
        raise UserError(f"{row.where}: the field {name!r} must be a list of strings")
    return values

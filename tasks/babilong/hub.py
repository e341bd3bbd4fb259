"""The published samples: two sets on the Hugging Face hub, by length (config) and task (split).

Looked for in `--data-dir`, the cache and the hub client's own caches, in either set's layout (`data/qa1/4k.json`,
`4k/qa1-*.parquet`) or, in `--data-dir` with a README that says where the files are, any other; then on the hub. What
comes from the hub is kept in the cache.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from longeval.errors import UserError, one_line
from longeval.paths import cache_dir
from longeval.tasks.babilong.protocol import OFFICIAL_LENGTHS, TASKS
from longeval.tasks.corpora import Corpus, hub_answers, hub_snapshot, loaded_before
from longeval.tasks.rows import DataRow, json_array, json_lines


@dataclass(frozen=True)
class Question:
    """A context with facts in it, a question about them, and the one right answer."""

    context: str
    question: str
    target: str


HUNDRED = Corpus(
    name="babilong",
    title="BABILONG, 100 samples per task and length",
    filename="babilong",
    licence="Apache-2.0 (bAbI: CC BY 3.0; PG-19: Apache-2.0)",
    used_by="babilong",
    hub_id="RMT-team/babilong",
)
THOUSAND = Corpus(
    name="babilong-1k-samples",
    title="BABILONG, about 1000 samples per task and length to 128k",
    filename="babilong-1k-samples",
    licence="Apache-2.0 (bAbI: CC BY 3.0; PG-19: Apache-2.0)",
    used_by="babilong (--babilong-data 1k)",
    hub_id="RMT-team/babilong-1k-samples",
)


def folders(corpus: Corpus, data_dir: Path | None) -> list[Path]:
    """Where files of the set are on this machine, in the order they are looked for."""
    places = [data_dir / corpus.filename, data_dir / str(corpus.hub_id)] if data_dir else []
    return [place for place in [*places, _cache(corpus), hub_snapshot(str(corpus.hub_id))] if place and place.is_dir()]


def at_hand(corpus: Corpus, data_dir: Path | None) -> bool:
    """Whether samples of the set are on this machine."""
    return bool(folders(corpus, data_dir)) or loaded_before(str(corpus.hub_id))


def files(folder: Path, length: int, task: str) -> list[Path]:
    """The files of a nominal length and task in a folder laid out like one of the sets."""
    config = OFFICIAL_LENGTHS[length]
    patterns = (f"data/{task}/{config}.*", f"{config}/{task}[-.]*")
    return next((found for pattern in patterns if (found := sorted(folder.glob(pattern)))), [])


def questions(corpus: Corpus, length: int, task: str, data_dir: Path | None) -> list[Question]:
    """All samples of a nominal length and task. UserError with the place of a bad row, or when they are nowhere."""
    config = OFFICIAL_LENGTHS[length]
    for folder in folders(corpus, data_dir):
        if here := files(folder, length, task):
            return [_question(row, task) for file in here for row in _read(file)]
        if data_dir and folder.is_relative_to(data_dir) and (folder / "README.md").exists():
            return [_question(row, task) for row in _load(str(folder), config, split=task)]
    if not hub_answers() and not loaded_before(str(corpus.hub_id)):
        raise UserError(
            f"no {config} samples of {task} from {corpus.hub_id}: the hub does not answer; put {corpus.filename} into "
            "--data-dir, or use --babilong-data own with bAbI stories and books"
        )
    found = [_question(row, task) for row in _load(str(corpus.hub_id), config, split=task)]
    _keep(_cache(corpus) / "data" / task / f"{config}.json", found)
    return found


def _cache(corpus: Corpus) -> Path:
    return cache_dir() / "corpora" / corpus.filename


def _keep(file: Path, found: list[Question]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    rows = [{"input": q.context, "question": q.question, "target": q.target} for q in found]
    partial.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    partial.replace(file)


def _read(file: Path) -> Iterator[DataRow]:
    if file.suffix == ".parquet":
        return _load("parquet", data_files=str(file), split="train", called=str(file))
    content = file.read_bytes()
    if content.lstrip().startswith(b"["):
        return json_array(content, str(file))
    return json_lines(content.splitlines(), str(file))


def _load(source: str, *config: str, called: str | None = None, **which: str) -> Iterator[DataRow]:
    """Rows that `datasets` loads, named after `called` or the source, the config and the split."""
    from datasets import load_dataset

    name = called or " ".join([source, *config, which["split"]])
    try:
        rows = load_dataset(source, *config, **which)
    except Exception as error:  # whatever the client raises, the user needs to know what could not be had
        raise UserError(f"{name} cannot be loaded ({one_line(error)})") from error
    return (DataRow(f"{name} row {number}", record) for number, record in enumerate(rows, start=1))


def _question(row: DataRow, task: str) -> Question:
    found = Question(row.get("input", str), row.get("question", str), row.get("target", str))
    check_target(found.target, task, row.where)
    return found


def check_target(target: str, task: str, where: str) -> None:
    """UserError when `target` is none of the task's answers: no prediction could ever be right."""
    labels = TASKS[task].labels
    if target not in labels:
        raise UserError(f"{where}: the target {target!r} is none of {task}'s answers ({', '.join(labels)})")

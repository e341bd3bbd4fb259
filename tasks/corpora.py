"""Text corpora: where each is looked for, what it is called on disk, its licence, and how to get it.

Search order: `--data-dir`, the cache, an installed package that carries the file, the Hugging Face hub. A corpus that
is nowhere is an error that says what to install; nothing is ever replaced by something else silently.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from longeval.errors import UserError, one_line
from longeval.paths import cache_dir


@dataclass(frozen=True)
class Corpus:
    """One source of text. `filename` is its name in `--data-dir` and in the cache (a file or a folder).

    `module` and `module_path`: an importable package that carries it, and the path inside it.
    `install`: the command that brings that package. `hub_id`, `hub_kind`, `fetch`: the hub's repository ("dataset" or
    "model") and what writes `filename` from it.
    `known`: digests of published versions and what to call them, so that a result can say which text it saw.
    """

    name: str
    title: str
    filename: str
    licence: str
    used_by: str
    install: str | None = None
    module: str | None = None
    module_path: str = ""
    hub_id: str | None = None
    hub_kind: str = "dataset"
    fetch: Callable[[Path], None] | None = None
    known: Mapping[str, str] = field(default_factory=dict)

    def locate(self, data_dir: Path | None = None) -> Path | None:
        """The file or folder on this machine, or None. Touches no network."""
        folders = ([data_dir] if data_dir else []) + [cache_dir() / "corpora"]
        for folder in folders:
            if (folder / self.filename).exists():
                return folder / self.filename
        return self._in_package()

    def _in_package(self) -> Path | None:
        spec = find_spec(self.module) if self.module else None
        for root in (spec.submodule_search_locations or []) if spec else []:
            if (Path(root) / self.module_path).exists():
                return Path(root) / self.module_path
        return None

    def require(self, data_dir: Path | None = None) -> Path:
        """The file or folder; fetches it from the hub into the cache as the last resort. UserError otherwise."""
        if found := self.locate(data_dir):
            return found
        if self.fetch is None:
            raise UserError(f"corpus {self.name!r} ({self.title}) not found; {self.remedy()}")
        target = cache_dir() / "corpora" / self.filename
        partial = target.with_name(f"{target.name}.{os.getpid()}.part")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with _quiet_hub():
                self.fetch(partial)
            partial.replace(target)
        except Exception as error:  # whatever the hub client raises, the user needs the same answer
            what = f"corpus {self.name!r} not found and not fetched ({one_line(error)})"
            raise UserError(f"{what}; {self.remedy()}") from error
        return target

    def reachable(self) -> bool:
        """Whether `require` has where to fetch it from: a hub that answers, or what its clients kept."""
        if self.fetch is None or self.hub_id is None:
            return False
        kept = hub_snapshot(self.hub_id, self.hub_kind) is not None or loaded_before(self.hub_id)
        return kept or hub_answers()

    def digest(self, data_dir: Path | None = None) -> str:
        """`file_hash` of what `require` finds."""
        return file_hash(self.require(data_dir))

    def version(self, data_dir: Path | None = None) -> str:
        """Which published version this is, or its digest when it is none of them."""
        digest = self.digest(data_dir)
        return self.known.get(digest, f"unknown version {digest}")

    def source(self, data_dir: Path | None = None) -> str:
        """Where it is, or where it would come from, in a few words."""
        found = self.locate(data_dir)
        if found is None:
            return f"{self.name} (from hub {self.hub_id} when needed)" if self.reachable() else f"{self.name} (missing)"
        if found == self._in_package():
            return f"{self.name} (package {self.module})"
        return f"{self.name} ({found})"

    def remedy(self) -> str:
        """What a user can do to get it."""
        ways = [f"put {self.filename} into --data-dir"]
        if self.install:
            ways.insert(0, f"run `{self.install}`")
        if self.hub_id:
            ways.append(f"go online for {self.hub_id}")
        return ", ".join([*ways[:-1], f"or {ways[-1]}"] if len(ways) > 1 else ways)


@contextmanager
def _quiet_hub() -> Iterator[None]:
    """Keeps the hub client's complaints about each retry out of what ends as one line."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


@lru_cache(maxsize=1)
def hub_answers() -> bool:
    """Whether the hub answers; the clients themselves take half a minute to find out that it does not."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        with urlopen(Request(constants.ENDPOINT, method="HEAD"), timeout=10):
            return True
    except HTTPError:
        return True  # it answered
    except OSError:
        return False


def hub_snapshot(repository: str, kind: str = "dataset") -> Path | None:
    """The folder of a hub repository's files in the hub client's own cache, as far as they are there, or None.

    Touches no network. `kind`: "dataset" or "model".
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repository, repo_type=kind, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):  # not there, or the name of a local folder
        return None


def loaded_before(dataset: str) -> bool:
    """Whether `datasets` keeps something of a dataset, which it finds again when the hub does not answer."""
    from datasets import config

    return (Path(config.HF_DATASETS_CACHE) / dataset.replace("/", "___")).is_dir()


def hub_source(repository: str, kind: str = "dataset") -> str:
    """What a client loads a hub repository from: its id, or its files in the cache where the hub does not answer."""
    return repository if hub_answers() else str(hub_snapshot(repository, kind) or repository)


def hub_rows(
    dataset: str, config: str | None = None, *, split: str, files: str | None = None
) -> Iterable[Mapping[str, Any]]:
    """Rows of one split. `files`: those that hold it, which keeps `datasets` from fetching the other splits too."""
    from datasets import load_dataset

    data_files = {split: files} if files else None
    rows: Iterable[Mapping[str, Any]] = load_dataset(hub_source(dataset), config, data_files=data_files, split=split)
    return rows


def all_corpora() -> list[Corpus]:
    """Every corpus that some task reads, each once."""
    from longeval.tasks.base import TaskOptions  # late: tasks declare their corpora with this module
    from longeval.tasks.registry import SUITES, get_suite

    tasks = [make(short, TaskOptions()) for name in SUITES for short, make in get_suite(name).tasks.items()]
    return list({corpus.name: corpus for task in tasks for corpus in task.corpora}.values())


def file_hash(path: Path) -> str:
    """First 16 hex digits of the SHA-256 of a file, or of all files under a folder with their names."""
    files = [file for file in sorted(path.rglob("*")) if file.is_file()] if path.is_dir() else [path]
    stats = tuple((str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files)
    return _hash(path, stats)


@lru_cache(maxsize=64)
def _hash(path: Path, stats: tuple[tuple[str, int, int], ...]) -> str:
    """`stats` (path, size, time of change of each file) makes a changed file a new entry of the memory."""
    digest = hashlib.sha256()
    for name, _, _ in stats:
        file = Path(name)
        if file != path:
            digest.update(file.relative_to(path).as_posix().encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]

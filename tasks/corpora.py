"""Text corpora: where each is looked for, what it is called on disk, its licence, and how to get it.

Search order: `--data-dir`, the cache, an installed package that carries the file, the Hugging Face hub. A corpus that
is nowhere is an error that says what to install; nothing is ever replaced by something else silently.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from longeval.errors import UserError


def cache_dir() -> Path:
    """`$LONGEVAL_CACHE`, else `$XDG_CACHE_HOME/longeval`, else `~/.cache/longeval`."""
    if explicit := os.environ.get("LONGEVAL_CACHE"):
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "longeval"


@dataclass(frozen=True)
class Corpus:
    """One source of text. `filename` is its name in `--data-dir` and in the cache.

    `module` and `module_path`: an importable package that carries the file, and the path inside it.
    `install`: the command that brings that package. `hub`: what fetches it through `datasets` and writes `filename`.
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
    fetch: Callable[[Path], None] | None = None

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
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            self.fetch(target)
        except Exception as error:  # whatever the hub client raises, the user needs the same answer
            first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(f"corpus {self.name!r} not found and not fetched ({first_line}); {self.remedy()}") from error
        return target

    def remedy(self) -> str:
        """What a user can do to get it."""
        ways = [f"put {self.filename} into --data-dir"]
        if self.install:
            ways.insert(0, f"run `{self.install}`")
        if self.hub_id:
            ways.append(f"or go online for {self.hub_id}")
        return ", ".join(ways)


def file_hash(path: Path) -> str:
    """First 16 hex digits of the SHA-256 of a file, or of all files under a folder with their names."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            digest.update(file.relative_to(path).as_posix().encode() if path.is_dir() else b"")
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]

"""One way to write files for the user: whatever the file system refuses is one line that names the place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from longeval.errors import UserError


@contextmanager
def writing_to(path: Path, remedy: str = "choose another --out") -> Iterator[None]:
    """Turns what the operating system says while `path` is written into a UserError that ends with `remedy`."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write to {path} ({error.strerror}); {remedy}") from error


def write_text(path: Path, text: str) -> None:
    """Writes a UTF-8 file; UserError when it cannot be written."""
    with writing_to(path):
        path.write_text(text, "utf-8")


def json_text(content: Any) -> str:
    """Indented JSON that any reader takes: a ValueError rather than NaN in it."""
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

"""Trained reference checkpoints: the position methods in miniature, and the recipe that made them.

One small language model per method, of one size and trained alike on generated tasks and text (README.md beside this
file): RoPE, NoPE, FoX, PaTH and PaTH-FoX, and two more training seeds of RoPE and PaTH-FoX. `demo:path-fox` names one
wherever a model is named; `demo` is that one. Unlike backends, the recipe knows the tasks that it teaches; nothing that
loads a checkpoint imports it.
"""

from __future__ import annotations

from pathlib import Path

from longeval.errors import UserError, nearest

DEMO = "demo"
CHECKPOINTS = ("rope", "nope", "fox", "path", "path-fox")  # training seed 0
ALL_CHECKPOINTS = (*CHECKPOINTS, "rope-1", "rope-2", "path-fox-1", "path-fox-2")
TRAINED_LENGTH = 512
_FOLDER = Path(__file__).parent / "checkpoints"


def is_reference(name: str) -> bool:
    """Whether `name` is `demo` or begins with `demo:`."""
    return name == DEMO or name.startswith(f"{DEMO}:")


def find_reference(name: str) -> tuple[str, Path]:
    """The full name and the folder of what `demo` or `demo:...` means. UserError when there is none of that name."""
    short = name.removeprefix(DEMO).removeprefix(":") or "path-fox"
    if short not in ALL_CHECKPOINTS:
        raise UserError(f"no such model: {name}{nearest(name, [f'{DEMO}:{one}' for one in ALL_CHECKPOINTS])}")
    return f"{DEMO}:{short}", _FOLDER / short

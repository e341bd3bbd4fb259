"""longeval: what a language model does beyond its training length.

The public API is these names; everything heavy (torch, transformers) loads on first use:

    model = longeval.load_model("path/or/hub-id")
    task = longeval.get_task("ruler/niah_single_1")
    samples = task.build(model.tokenizer, length=4096, count=10)
    result = longeval.run(longeval.RunConfig(model="ckpt", suites=("ruler",)))
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longeval.config import RunConfig as RunConfig
    from longeval.errors import UserError as UserError
    from longeval.evaluate import RunResult as RunResult
    from longeval.evaluate import run as run
    from longeval.models import load_model as load_model
    from longeval.tasks import TaskOptions as TaskOptions
    from longeval.tasks import get_task as get_task

__version__ = "0.1.0"

# In a checkout the subpackages (tasks, models, ...) stand beside this folder, in a wheel inside it.
_checkout = Path(__file__).resolve().parent.parent
if (_checkout / "pyproject.toml").is_file() and (_checkout / "tasks").is_dir():
    __path__.append(str(_checkout))

_HOME = {
    "RunConfig": "longeval.config",
    "RunResult": "longeval.evaluate",
    "TaskOptions": "longeval.tasks",
    "UserError": "longeval.errors",
    "get_task": "longeval.tasks",
    "load_model": "longeval.models",
    "run": "longeval.evaluate",
}
__all__ = ["RunConfig", "RunResult", "TaskOptions", "UserError", "get_task", "load_model", "run"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'longeval' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)

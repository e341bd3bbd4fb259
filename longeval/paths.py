"""Where longeval keeps what it makes or fetches."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """`$LONGEVAL_CACHE`, else `$XDG_CACHE_HOME/longeval`, else `~/.cache/longeval`."""
    if explicit := os.environ.get("LONGEVAL_CACHE"):
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "longeval"

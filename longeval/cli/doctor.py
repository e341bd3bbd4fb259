"""longeval doctor: what this installation can do, and why not."""

from __future__ import annotations

import os
import platform
import shutil

from rich.console import Console
from rich.table import Table
from rich.text import Text

import longeval
from longeval.manifest import package_versions
from longeval.paths import cache_dir


def command() -> int:
    """Show versions, devices, and which backends work and why not. Exit status 1 if an installed one is broken."""
    from longeval.models import backend_problems
    from longeval.models.choice import broken

    table = Table(title="longeval doctor", title_justify="left", pad_edge=False, show_header=False)
    table.add_row("longeval", longeval.__version__)
    table.add_row("python", f"{platform.python_version()} on {platform.platform()}")
    for package, version in package_versions().items():
        table.add_row(package, version)
    for device, description in _devices():
        table.add_row(device, description)
    unusable = broken()
    for backend, problem in backend_problems().items():
        answer = Text(f"no: {problem}", style="yellow") if problem else Text("works", style="green")
        if backend in unusable:
            answer = Text(f"broken: {problem}", style="red")
        table.add_row(f"backend {backend}", answer)
    cache = cache_dir()
    existing = next(folder for folder in (cache, *cache.parents) if folder.exists())
    writable = "writable" if existing.is_dir() and os.access(existing, os.W_OK) else "NOT writable"
    table.add_row("cache", f"{cache} ({writable}, {shutil.disk_usage(existing).free / 1e9:.0f} GB free)")
    Console().print(table)
    return 1 if unusable else 0


def _devices() -> list[tuple[str, str]]:
    import torch

    devices = [("cpu", f"{os.cpu_count()} cores, {torch.get_num_threads()} threads")]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        devices.append((f"cuda:{index}", f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"))
    return devices

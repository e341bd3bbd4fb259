"""longeval tasks: every suite and task."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from longeval.cli.options import with_task_options
from longeval.tasks import SUITES, TaskOptions, get_suite


@with_task_options
def command(*, options: TaskOptions) -> int:
    """List every suite and task: default lengths, samples per cell, metric, data source and whether it is at hand."""
    console = Console()
    for name in SUITES:
        suite = get_suite(name)
        table = Table(title=f"{name}: {suite.title}", title_justify="left", pad_edge=False)
        for column in ("task", "lengths", "n", "metric", "data", "at hand"):
            table.add_column(column, overflow="fold")
        for short, make in suite.tasks.items():
            task = make(short, options)
            status = task.data_status()
            lengths = [task.length_label(length) for length in task.lengths]
            span = lengths[0] if len(lengths) == 1 else f"{lengths[0]}…{lengths[-1]} ({len(lengths)}, {task.unit})"
            at_hand = Text(status.at_hand, style="green" if status.at_hand == "yes" else "yellow")
            table.add_row(short, span, str(task.count), task.metric, status.source, at_hand)
        console.print(table)
    return 0

"""longeval tasks: every suite and task."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from longeval.cli.options import with_task_options
from longeval.tasks import SUITES, Suite, Task, TaskOptions, get_suite

_STYLES = {"yes": "green", "from the hub": "yellow", "no": "red"}


@with_task_options
def command(*, options: TaskOptions) -> int:
    """List every suite and task: default lengths, samples per cell, metric, data source and whether it is at hand."""
    console = Console()
    for name in SUITES:
        suite = get_suite(name)
        tasks = [make(short, options) for short, make in suite.tasks.items()]
        _print_suite(console, suite, tasks)
    return 0


def _print_suite(console: Console, suite: Suite, tasks: list[Task]) -> None:
    """The suite's table, and under it where the data comes from, once for all tasks that share it."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for column in ("task", "lengths", "n", "metric", "data at hand"):
        table.add_column(column, justify="right" if column == "n" else "left", no_wrap=True)
    sources: dict[str, list[str]] = {}
    for task in tasks:
        status = task.data_status()
        at_hand = status.at_hand.partition(":")[0]
        labels = [task.length_label(length) for length in task.lengths]
        span = "…".join(dict.fromkeys([labels[0], labels[-1]]))
        table.add_row(
            task.short_name, span, str(task.count), task.metric, Text(at_hand, style=_STYLES.get(at_hand, ""))
        )
        line = f"{status.source}; {status.problem}" if status.problem else status.source
        sources.setdefault(line, []).append(task.short_name)
    console.print(Text(f"{suite.name} · {suite.title} · lengths in {tasks[0].unit}", style="bold"))
    console.print(table)
    for line, names in sources.items():
        whose = "data" if len(names) == len(tasks) else ", ".join(names)
        console.print(Text(f"{whose}: {line}", style="dim"))
    console.print()

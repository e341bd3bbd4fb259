"""Suites by name. A suite is a module with a `SUITE`; naming it here is all that it takes to add one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Literal

from longeval.errors import UserError, nearest
from longeval.tasks.base import Task, TaskOptions

SUITES = {
    "babilong": "longeval.tasks.babilong",
    "longbench_e": "longeval.tasks.longbench_e",
    "perplexity": "longeval.tasks.perplexity",
    "phonebook": "longeval.tasks.phonebook",
    "ruler": "longeval.tasks.ruler",
    "state_tracking": "longeval.tasks.state_tracking",
}


@dataclass(frozen=True)
class Average:
    """A mean that tables show under a suite, per length.

    `over`: "tasks" is the plain mean of the member tasks, "categories" the mean of the categories' means.
    `members`: short task names; empty means the whole suite.
    """

    name: str
    over: Literal["tasks", "categories"] = "tasks"
    members: tuple[str, ...] = ()


@dataclass(frozen=True)
class Suite:
    """`tasks` maps a short name to its factory, in the order that tables use.

    `effective_threshold`: where the suite has an effective length (the longest one whose average exceeds this).
    `on_request`: tasks that run only when they are named. `downloaded`: tasks that `--haystack stdlib`, the run
    without any download, leaves out unless they are named.
    """

    name: str
    title: str
    tasks: Mapping[str, Callable[[str, TaskOptions], Task]]
    averages: tuple[Average, ...] = (Average("average"),)
    effective_threshold: float | None = None
    on_request: frozenset[str] = frozenset()
    downloaded: frozenset[str] = frozenset()

    def default_tasks(self, options: TaskOptions) -> list[str]:
        """Short names of the tasks that run when the user names none."""
        left_out = self.on_request | (self.downloaded if options.haystack == "stdlib" else frozenset())
        return [short for short in self.tasks if short not in left_out]


def get_suite(name: str) -> Suite:
    """The suite called `name`; UserError with the nearest names otherwise."""
    if name not in SUITES:
        raise UserError(f"unknown suite {name!r}{nearest(name, SUITES)}")
    suite: Suite = import_module(SUITES[name]).SUITE
    return suite


def get_task(name: str, options: TaskOptions | None = None) -> Task:
    """The task called `suite/task`; UserError with the nearest names otherwise."""
    suite_name, slash, short_name = name.partition("/")
    if not slash:
        raise UserError(f"task {name!r} needs its suite: write suite/task, for example ruler/niah_single_1")
    suite = get_suite(suite_name)
    if short_name not in suite.tasks:
        raise UserError(f"unknown task {short_name!r} in suite {suite_name!r}{nearest(short_name, suite.tasks)}")
    return suite.tasks[short_name](short_name, options or TaskOptions())


def select_tasks(suites: Sequence[str], tasks: Sequence[str], options: TaskOptions) -> list[Task]:
    """The tasks of `suites`, in table order: those in `tasks` (short or full names), else the suites' defaults."""
    if not tasks:
        chosen = [get_suite(suite) for suite in suites]
        names = [f"{suite.name}/{short}" for suite in chosen for short in suite.default_tasks(options)]
        return [get_task(name, options) for name in names]
    every = [f"{suite}/{short}" for suite in suites for short in get_suite(suite).tasks]
    wanted = set()
    for task in tasks:
        if "/" in task:
            get_task(task, options)
        matches = [name for name in every if task in (name, name.partition("/")[2])]
        if not matches:
            short_names = [name.partition("/")[2] for name in every]
            raise UserError(f"task {task!r} is in none of the chosen suites{nearest(task, short_names)}")
        wanted.update(matches)
    return [get_task(name, options) for name in every if name in wanted]

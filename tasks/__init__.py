"""Benchmarks: suites of tasks that build samples and score predictions. They know no model."""

from __future__ import annotations

from longeval.tasks.base import DataStatus, DoesNotFit, Sample, Shot, Task, TaskOptions
from longeval.tasks.registry import SUITES, Average, Suite, get_suite, get_task, select_tasks

__all__ = [
    "SUITES",
    "Average",
    "DataStatus",
    "DoesNotFit",
    "Sample",
    "Shot",
    "Suite",
    "Task",
    "TaskOptions",
    "get_suite",
    "get_task",
    "select_tasks",
]

"""What a run will do: every cell task × length, built (into the cache) before the first prediction.

Building first means that missing data, a length that is too small or an over-long prompt is said before hours of work.
The samples stay in the cache on disk; a plan keeps only their numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from longeval.config import RunConfig
from longeval.errors import UserError
from longeval.tasks import DoesNotFit, Sample, Task, TaskOptions, get_suite, select_tasks
from longeval.tasks.cache import build_cached


@dataclass(frozen=True)
class Cell:
    """One task at one length. `planned`: samples asked for; `tokens`: prompt tokens of all of them.

    `longest`: tokens of the longest prompt with its answer. `smallest`: the task's smallest size when the length is
    below it, else None. `note`: what the task has to say of these samples.
    """

    task: Task
    length: int
    planned: int
    tokens: int = 0
    longest: int = 0
    smallest: int | None = None
    note: str | None = None

    @property
    def fits(self) -> bool:
        return self.smallest is None


@dataclass(frozen=True)
class Plan:
    """The cells of a run, shortest lengths first, and how to get their samples."""

    config: RunConfig
    tokenizer: Any
    chat: bool
    options: TaskOptions
    cells: list[Cell]

    @property
    def tasks(self) -> list[Task]:
        return list({cell.task.name: cell.task for cell in self.cells}.values())

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its answer: the window that a backend has to hold."""
        return max(cell.longest for cell in self.cells)

    def samples(self, cell: Cell) -> list[Sample]:
        """The cell's samples, from the cache."""
        return cell_samples(cell.task, cell.length, cell.planned, self.config, self.tokenizer, self.chat)


def wants_chat(setting: str, tokenizer: Any) -> bool:
    """Whether prompts go through the chat template: `auto` follows the tokenizer having one."""
    return setting == "on" or (setting == "auto" and bool(getattr(tokenizer, "chat_template", None)))


def cell_samples(task: Task, length: int, count: int, config: RunConfig, tokenizer: Any, chat: bool) -> list[Sample]:
    """Samples of one cell, over-long ones cut when the user asked for that."""
    samples = build_cached(task, tokenizer, length, count, config.seed, chat)
    limit = config.options.max_length
    if limit is None or task.truncates or config.overflow == "refuse":
        return samples
    return [truncate_middle(sample, limit) for sample in samples]


def truncate_middle(sample: Sample, limit: int) -> Sample:
    """`sample` with the middle of its prompt cut out so that `limit` tokens are left."""
    if len(sample.ids) <= limit:
        return sample
    head = limit // 2
    ids = sample.ids[:head] + sample.ids[len(sample.ids) - (limit - head) :]
    return replace(sample, ids=ids, meta={**sample.meta, "truncated": True})


def make_plan(
    config: RunConfig,
    tokenizer: Any,
    trained_length: int | None,
    progress: Callable[[str], None] = lambda message: None,
) -> Plan:
    """Builds every sample of `config`. UserError when nothing fits, data is missing or a prompt is over-long."""
    options = config.options
    if options.max_length is None:
        window = trained_length - 500 if trained_length and trained_length > 1000 else None
        options = replace(options, max_length=window)
    tasks = select_tasks(config.suites, config.tasks, options)
    for task in tasks:
        if problem := task.data_status().problem:
            raise UserError(f"{task.name}: {problem}; or leave the task out with --tasks")
    _refuse_cut_documents(config, tasks)
    chat = wants_chat(config.chat, tokenizer)
    wanted = [(length, task) for task in tasks for length in config.lengths or task.lengths]
    cells = []
    for length, task in sorted(wanted, key=lambda pair: pair[0]):
        progress(f"{task.name} {task.length_label(length)}")
        cells.append(_plan_cell(task, length, config, tokenizer, chat))
    if not any(cell.fits for cell in cells):
        smallest = {cell.task.name: cell.smallest for cell in cells}
        needs = ", ".join(f"{name} needs {size:,}" for name, size in list(smallest.items())[:4])
        raise UserError(f"no chosen task fits the chosen lengths ({needs}); choose longer --lengths")
    return Plan(config, tokenizer, chat, options, cells)


def _refuse_cut_documents(config: RunConfig, tasks: list[Task]) -> None:
    """A scored sequence with its middle cut out has other positions and targets than the task says."""
    documents = [task.name for task in tasks if task.kind == "logprob"]
    if config.overflow == "truncate-middle" and config.options.max_length is not None and documents:
        raise UserError(f"--overflow truncate-middle cannot be used with {documents[0]}; choose shorter --lengths")


def _plan_cell(task: Task, length: int, config: RunConfig, tokenizer: Any, chat: bool) -> Cell:
    if length == 0 and 0 not in task.lengths:
        raise UserError(f"{task.name} has no length 0; choose longer --lengths")
    count = config.limit or task.count
    if config.limit_tokens is not None:
        count = max(1, min(count, config.limit_tokens // max(1, length)))
    try:
        samples = cell_samples(task, length, count, config, tokenizer, chat)
    except DoesNotFit as small:
        return Cell(task, length, count, smallest=small.smallest)
    if not samples:
        raise UserError(f"{task.name} at {task.length_label(length)} has no samples; look at its data")
    prompts = [len(sample.ids) for sample in samples]
    limit = config.options.max_length
    if limit is not None and max(prompts) > limit and not task.truncates:
        raise UserError(
            f"{task.name} at {task.length_label(length)} has a prompt of {max(prompts):,} tokens, more than "
            f"--max-length {limit:,}; raise it, choose shorter --lengths, or use --overflow truncate-middle"
        )
    longest = max(len(sample.ids) + sample.max_new_tokens for sample in samples)
    return Cell(task, length, len(samples), sum(prompts), longest, note=task.cell_note(samples))


def suite_info(name: str, tasks: Sequence[Task], notes: Sequence[str] = ()) -> dict[str, Any]:
    """What results need to know of a suite, as JSON: those of its tasks in `tasks`, all its tasks, its averages.

    A task that runs only on request belongs to the suite when it was requested: without it the suite is not partial.
    """
    suite = get_suite(name)
    mine = [task for task in tasks if task.suite == name]
    chosen = {task.name for task in mine}
    options = mine[0].options

    def describe(task: Task) -> dict[str, Any]:
        return {
            "name": task.name,
            "category": task.category,
            "metric": task.metric,
            "percent": task.percent,
            "beside": task.beside,
            "version": task.version,
        }

    return {
        "name": name,
        "title": suite.title,
        "unit": mine[0].unit,
        "tasks": [describe(task) for task in mine],
        "all_tasks": [
            describe(make(short, options))
            for short, make in suite.tasks.items()
            if short not in suite.on_request or f"{name}/{short}" in chosen
        ],
        "averages": [
            {"name": average.name, "over": average.over, "members": list(average.members)} for average in suite.averages
        ],
        "effective_threshold": suite.effective_threshold,
        "notes": list(notes),
    }


def suite_notes(name: str, cells: Sequence[Cell]) -> list[str]:
    """What belongs under the suite's table of a run of `cells`: how their samples were made."""
    mine = [cell for cell in cells if cell.task.suite == name]
    return [
        *dict.fromkeys(note for cell in mine for note in cell.task.notes()),
        *(f"{cell.task.short_name} {cell.task.length_label(cell.length)}: {cell.note}" for cell in mine if cell.note),
    ]

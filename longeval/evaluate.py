"""The run loop: build samples, predict, persist, score, aggregate. Here tasks, models and results meet."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console, RenderableType
from rich.table import Table

from longeval.config import RunConfig
from longeval.errors import UserError
from longeval.manifest import decides, default_out, info
from longeval.models import check_model, find_model, load_model
from longeval.models.base import Model
from longeval.plan import Cell, Plan, make_plan
from longeval.progress import Progress
from longeval.results.aggregate import Scores, rebuild_scores
from longeval.results.store import Row, RunFolder, RunWriter, create_or_resume, reserve
from longeval.results.view import run_view, save_plots
from longeval.tasks import Sample
from longeval.types import Generation, TokenScores

if TYPE_CHECKING:
    from longeval.models.checkpoint import Checkpoint


@dataclass(frozen=True)
class RunResult:
    """A finished run: its folder, manifest and scores. `complete`: every requested sample has a score."""

    path: Path
    manifest: dict[str, Any]
    scores: Scores

    @property
    def complete(self) -> bool:
        return self.scores.complete

    def table(self, width: int = 80) -> RenderableType:
        """What the command line prints, see `run_view`."""
        return run_view(RunFolder(self.path), self.scores, width)


def run(config: RunConfig, console: Console | None = None) -> RunResult:
    """Evaluates `config.model` on the chosen suites; resumes when its run folder holds a part already.

    Progress goes to `console` (none by default). Raises UserError for bad input; a sample whose prediction fails
    becomes a row with an error and the run goes on.
    """
    console = console or Console(quiet=True)
    checkpoint = check_model(config.model, config.backend, config.device, config.vllm)
    if config.out:
        reserve(config.out)
    with Progress(console) as progress:
        plan = _plan(config, checkpoint, progress)
        console.print(f"[dim]{_describe_plan(plan)}[/]", highlight=False)
        model = load_model(checkpoint, config.backend, config.dtype, config.device, plan.longest, config.vllm)
        console.print(f"[dim]{model.name}: {_describe_model(model)}[/]", highlight=False)
        deciding = decides(plan, model)
        with create_or_resume(config.out or default_out(deciding, plan), deciding, info(plan, model)) as folder:
            console.print(f"[dim]run folder: {folder.path}[/]", highlight=False)
            predict(plan, model, folder, progress)
            save_plots(folder)
            return RunResult(folder.path, folder.manifest, rebuild_scores(folder))


def dry_run(config: RunConfig, console: Console) -> RenderableType:
    """A table of what `run` would do: builds the samples, loads no weights."""
    with Progress(console) as progress:
        plan = _plan(config, find_model(config.model), progress)
    table = Table(title=_describe_plan(plan), title_justify="left", pad_edge=False)
    for column in ("task", "length", "samples", "prompt tokens", "longest"):
        table.add_column(column, justify="left" if column == "task" else "right")
    for cell in plan.cells:
        numbers = (
            [f"{n:,}" for n in (cell.planned, cell.tokens, cell.longest)] if cell.fits else ["does not fit", "", ""]
        )
        table.add_row(cell.task.name, cell.task.length_label(cell.length), *numbers)
    return table


def _plan(config: RunConfig, checkpoint: Checkpoint, progress: Progress) -> Plan:
    tokenizer = checkpoint.tokenizer
    if tokenizer is None:
        raise UserError(f"{config.model} has no tokenizer: add tokenizer.json and tokenizer_config.json to its folder")
    return make_plan(config, tokenizer, config.trained_length or checkpoint.trained_length, progress.building)


def _describe_model(model: Model) -> str:
    """What will run: backend and why, dtype, device, trained window, and the settings of an engine that has some."""
    known = model.provenance
    facts = [str(known[key]) for key in ("backend", "dtype", "device") if key in known]
    if "backend_reason" in known:
        facts[0] += f" ({known['backend_reason']})"
    facts.append(f"trained window {model.trained_length:,}" if model.trained_length else "trained window unknown")
    engine = "".join(f"\n  {key}={value}" for key, value in known.get("engine", {}).items())
    return ", ".join(facts) + engine


def _describe_plan(plan: Plan) -> str:
    fitting = [cell for cell in plan.cells if cell.fits]
    samples, tokens = sum(cell.planned for cell in fitting), sum(cell.tokens for cell in fitting)
    mode = "chat template" if plan.chat else "no chat template"
    return f"{samples:,} samples in {len(fitting)} cell(s), {tokens:,} prompt tokens, {mode}"


def predict(plan: Plan, model: Model, folder: RunWriter, progress: Progress) -> None:
    """Predicts, scores and persists every sample of the plan that the folder does not hold yet."""
    done = {sample_id for sample_id, row in folder.rows().items() if row.error is None}
    progress.start(sum(cell.tokens for cell in plan.cells))
    for cell in plan.cells:
        if not cell.fits:
            continue
        progress.cell(f"{cell.task.name} {cell.task.length_label(cell.length)}")
        pending = []
        for sample in plan.samples(cell):
            if sample.id in done and (cell.task.kind != "logprob" or folder.has_nll(sample.id)):
                progress.skip(len(sample.ids))
            else:
                pending.append(sample)
        for row, nll in _predict_cell(cell, pending, model):
            folder.append(row, nll)
            progress.advance(row.prompt_tokens, row.new_tokens, failed=row.error is not None)


def _predict_cell(cell: Cell, samples: Sequence[Sample], model: Model) -> Iterator[tuple[Row, Any]]:
    if cell.task.kind == "logprob":
        for sample in samples:
            yield _score_sequence(cell, sample, model)
        return
    for group in _same_decoding(samples):
        yield from _generate(cell, group, model)


def _same_decoding(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Samples that share decoding limits, which one `generate` call takes for all its prompts."""
    groups: dict[tuple[int, int, tuple[str, ...]], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.max_new_tokens, sample.min_new_tokens, sample.stop), []).append(sample)
    return list(groups.values())


def _generate(cell: Cell, samples: list[Sample], model: Model) -> Iterator[tuple[Row, None]]:
    """Rows as generations finish. When a batch fails its unfinished samples are tried alone, so that one bad sample
    costs only itself."""
    waiting = dict(enumerate(samples))
    started = time.perf_counter()
    try:
        for generation in _call_generate(model, samples):
            seconds, started = time.perf_counter() - started, time.perf_counter()
            yield _generated_row(cell, waiting.pop(generation.index), generation, seconds, model), None
    except UserError:
        raise
    except Exception as error:  # a backend can fail in any way; the sample's row keeps what it said
        if len(samples) == 1:
            yield _failed_row(cell, samples[0], error, time.perf_counter() - started, model), None
            return
        for sample in waiting.values():
            yield from _generate(cell, [sample], model)


def _call_generate(model: Model, samples: Sequence[Sample]) -> Iterator[Generation]:
    first = samples[0]
    prompts = [sample.ids for sample in samples]
    return model.generate(prompts, first.max_new_tokens, first.min_new_tokens, first.stop)


def _score_sequence(cell: Cell, sample: Sample, model: Model) -> tuple[Row, Any]:
    started = time.perf_counter()
    try:
        scored: TokenScores = model.token_scores(sample.ids)
    except UserError:
        raise
    except Exception as error:  # as above
        return _failed_row(cell, sample, error, time.perf_counter() - started, model), None
    scores = cell.task.score(scored, sample)
    seconds = time.perf_counter() - started
    return _row(cell, sample, model, scores=scores, seconds=seconds), -scored.logprobs.astype(np.float32)


def _generated_row(cell: Cell, sample: Sample, generation: Generation, seconds: float, model: Model) -> Row:
    prediction = model.tokenizer.decode(generation.ids) if cell.task.keep_special_tokens else generation.text
    return _row(
        cell,
        sample,
        model,
        new_tokens=len(generation.ids),
        prediction=prediction,
        finish_reason=generation.finish_reason,
        scores=cell.task.score(prediction, sample),
        seconds=seconds,
    )


def _failed_row(cell: Cell, sample: Sample, error: Exception, seconds: float, model: Model) -> Row:
    lines = str(error).splitlines() or [""]
    return _row(cell, sample, model, error=f"{type(error).__name__}: {lines[0]}", seconds=seconds, scores={})


def _row(cell: Cell, sample: Sample, model: Model, *, scores: dict[str, float], seconds: float, **more: Any) -> Row:
    tail = model.tokenizer.decode(sample.ids[-400:]) if model.tokenizer is not None else ""
    return Row(
        id=sample.id,
        task=sample.task,
        length=cell.length,
        prompt_tokens=len(sample.ids),
        references=sample.references,
        score=next(iter(scores.values()), None),
        scores=scores,
        seconds=round(seconds, 4),
        truncated=bool(sample.meta.get("truncated")),
        prompt_tail=tail[-400:],
        meta=sample.meta,
        **more,
    )

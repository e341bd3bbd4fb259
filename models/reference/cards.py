"""Model cards and pictures of the reference checkpoints, from their training logs and from `longeval demo --seeds`.

    longeval demo --seeds --out runs/demo
    python -m longeval.models.reference.cards runs/demo

writes README.md and loss.png into every checkpoint's folder, and tables and pictures of all of them into COMPARISON.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path
from typing import Any

from safetensors import safe_open

from longeval.models.reference import ALL_CHECKPOINTS, DEMO, TRAINED_LENGTH, find_reference
from longeval.models.reference.data import ROWS
from longeval.models.reference.train import PHASES

COMPARISON = Path(__file__).parent / "comparison"
TITLES = {"rope": "RoPE", "nope": "NoPE", "fox": "FoX", "path": "PaTH", "path-fox": "PaTH-FoX"}
_COLOURS = {"rope": "#3366cc", "nope": "#8c8c8c", "fox": "#dc3912", "path": "#109618", "path-fox": "#990099"}
_SMOOTH = 4  # points of a log in one of a curve
_CARD = """# {title}, training seed {seed}

`{DEMO}:{name}`: a language model of {parameters:,} parameters (bfloat16) that shows what one position method does
beyond its training length of {length} tokens. It is one of nine that differ in nothing but the method and the seed; the
recipe, the data and the comparison are in [the page of all of them](../../README.md).

- Method: {about}
- Format: flash-linear-attention's (`{model_type}`), 3 layers, width 128, 4 heads; byte-level BPE of 1,024 tokens
- Data: generated phone books, needles, variable chains, flip-flops, repeated recall and copies, the prose and
  sources of Python 3.11, and generated stories; {rows} tokens, {seen} with repeats. Seed {seed} draws the
  initial weights and the order of the rows. `--haystack stdlib`, and more documents of `perplexity/stdlib` than
  `longeval demo` reads, are text that it was trained on.
- Licence: Apache-2.0, as longeval. The text it saw is Python's, under the PSF licence, and longeval's own stories.

It can look up, recall and copy in the formats that it was trained on, as well as the tables say. It cannot hold a
conversation, follow instructions, know facts or write programs that work, and is of no use but to be measured.
Generation ends at the first line break, where answers ended in training.

![Loss](loss.png)

Held-out rows of {length} tokens after training: tokens of answers (of texts: all tokens) that are the first choice, in
percent.

{accuracy}

`longeval demo --seeds` on samples that training never saw, scores × 100 and losses in nats, with 95 % intervals:

{scores}
"""
_ABOUT = {
    "rope": "rotary positions, θ = 10,000.",
    "nope": "no positions: FoX with its forget gates frozen open (log f = 0), as fla has no type without positions.",
    "fox": "forgetting attention, a forget gate per head and no positions.",
    "path": "accumulated Householder transformations of rank-32 projections behind a convolution of width 3.",
    "path-fox": "PaTH with a forget gate per head.",
}


def method_of(name: str) -> tuple[str, int]:
    """Method and training seed of a checkpoint."""
    method, _, seed = name.rpartition("-")
    return (method, int(seed)) if seed.isdigit() else (name, 0)


def training_log(name: str) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Mean losses by kind of token, a line for every so many steps, and the accuracies at the end."""
    folder = find_reference(f"{DEMO}:{name}")[1]
    *losses, end = map(json.loads, (folder / "loss.jsonl").read_text().splitlines())
    return losses, end["accuracy"]


def scores_of(run: Path) -> list[dict[str, Any]]:
    """The cells of a run folder's scores.json."""
    cells: list[dict[str, Any]] = json.loads((run / "scores.json").read_text())["cells"]
    return cells


def _table(rows: Iterable[Iterable[str]]) -> str:
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, f"|---{'|---:' * (head.count('|') - 2)}|", *body])


def _percent(task: str) -> bool:
    return not task.startswith("perplexity/")


def _score(cell: dict[str, Any]) -> str:
    if not cell["fits"]:
        return "does not fit"
    scale, digits = (100, 0) if _percent(cell["task"]) else (1, 2)
    value, low, high = (scale * cell["mean"][key] for key in ("value", "low", "high"))
    return f"{value:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


def _millions(tokens: Iterable[int]) -> str:
    return f"{sum(tokens) / 1e6:.0f} million"


def card(name: str, run: Path) -> str:
    """The model card of a checkpoint, with what its run folder says."""
    method, seed = method_of(name)
    folder = find_reference(f"{DEMO}:{name}")[1]
    with safe_open(folder / "model.safetensors", "pt") as file:
        parameters = sum(math.prod(file.get_slice(key).get_shape()) for key in file.keys())  # noqa: SIM118
    accuracy = training_log(name)[1]
    accuracy.pop("prompt")
    cells = scores_of(run)
    lengths = sorted({cell["length"] for cell in cells})
    rows = [["task", *map(str, lengths)]]
    for task in dict.fromkeys(cell["task"] for cell in cells):
        by_length = {cell["length"]: cell for cell in cells if cell["task"] == task}
        rows.append([task, *(_score(by_length[length]) for length in lengths)])
    return _CARD.format(
        DEMO=DEMO,
        name=name,
        title=TITLES[method],
        seed=seed,
        parameters=parameters,
        length=TRAINED_LENGTH,
        about=_ABOUT[method],
        model_type=json.loads((folder / "config.json").read_text())["model_type"],
        rows=_millions(length * count for length, count in ROWS.items()),
        seen=_millions(phase.steps * phase.batch * phase.length for phase in PHASES),
        accuracy=_table([list(accuracy), [f"{100 * share:.1f}" for share in accuracy.values()]]),
        scores=_table(rows),
    )


def comparison(names: Iterable[str], runs: Path) -> str:
    """Scores of all checkpoints, a table per task."""
    cells = {name: scores_of(runs / name) for name in names}
    about = "`longeval demo --seeds`, scores × 100, losses in nats, 95 % intervals"
    parts = ["# The reference checkpoints compared", about]
    for task in dict.fromkeys(cell["task"] for cell in next(iter(cells.values()))):
        chosen = {name: [cell for cell in of_run if cell["task"] == task] for name, of_run in cells.items()}
        lengths = [f"{cell['length']:,} (n = {cell['planned']})" for cell in next(iter(chosen.values()))]
        rows = [["checkpoint", *lengths], *([f"`{name}`", *map(_score, of_run)] for name, of_run in chosen.items())]
        parts.append(f"## {task}\n\n{_table(rows)}")
    return "\n\n".join(parts) + "\n"


def _curve(losses: list[dict[str, float]], kind: str) -> tuple[list[float], list[float]]:
    """Steps and smoothed losses of one kind of token."""
    points = [(line["step"], line[kind]) for line in losses if kind in line]
    groups = [points[start : start + _SMOOTH] for start in range(0, len(points), _SMOOTH)]
    means = [[sum(column) / len(group) for column in zip(*group, strict=True)] for group in groups]
    return [step for step, _ in means], [loss for _, loss in means]


def _loss_axes(axes: Any, title: str) -> None:
    for end in list(accumulate(phase.steps for phase in PHASES))[:-1]:
        axes.axvline(end, color="#1f1f1f", linestyle="--", linewidth=0.8)
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel(f"step (rows of {', then '.join(str(phase.length) for phase in PHASES)} tokens)", fontsize=8)
    axes.set_ylabel("loss per token (nats)", fontsize=8)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)


def save_losses(name: str, path: Path) -> None:
    """Loss by kind of answer of one checkpoint."""
    from matplotlib.figure import Figure

    losses, accuracy = training_log(name)
    figure = Figure(figsize=(7, 4), dpi=110, layout="constrained")
    axes = figure.subplots()
    for kind in accuracy:
        if kind != "prompt":
            axes.plot(*_curve(losses, kind), linewidth=1.1, label=kind)
    _loss_axes(axes, f"{DEMO}:{name}")
    axes.legend(fontsize=8)
    figure.savefig(path)


def save_all_losses(names: Iterable[str], path: Path) -> None:
    """One picture per kind of answer, one curve per checkpoint."""
    from matplotlib.figure import Figure

    logs = {name: training_log(name) for name in names}
    kinds = [kind for kind in next(iter(logs.values()))[1] if kind != "prompt"]
    figure = Figure(figsize=(12, 6.5), dpi=110, layout="constrained")
    panels = figure.subplots(2, 4).flatten()
    for axes, kind in zip(panels, kinds, strict=False):
        for name, (losses, _) in logs.items():
            axes.plot(*_curve(losses, kind), **_style(name), linewidth=1.0)
        _loss_axes(axes, kind)
    _legend(panels[len(kinds)], panels[0])
    figure.savefig(path)


def save_comparison(names: Iterable[str], runs: Path, path: Path) -> None:
    """Scores by length with 95 % intervals, a picture per task, a curve per checkpoint."""
    from matplotlib.figure import Figure

    cells = {name: scores_of(runs / name) for name in names}
    tasks = list(dict.fromkeys(cell["task"] for cell in next(iter(cells.values()))))
    figure = Figure(figsize=(12, 6.5), dpi=110, layout="constrained")
    panels = figure.subplots(2, 3).flatten()
    for axes, task in zip(panels, tasks, strict=False):
        for place, (name, of_run) in enumerate(cells.items()):
            _draw_scores(axes, [cell for cell in of_run if cell["task"] == task and cell["fits"]], name, place)
        axes.axvline(TRAINED_LENGTH, color="#1f1f1f", linestyle="--", linewidth=0.8)
        axes.set_xscale("log", base=2)
        lengths = sorted({cell["length"] for cell in next(iter(cells.values()))})
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths], fontsize=8)
        axes.set_title(task, loc="left", fontsize=10)
        axes.set_ylabel("score × 100" if _percent(task) else "loss per token (nats)", fontsize=8)
        axes.grid(alpha=0.25)
    _legend(panels[len(tasks)], panels[0])
    figure.savefig(path)


def _draw_scores(axes: Any, cells: list[dict[str, Any]], name: str, place: int) -> None:
    """One curve; intervals of neighbouring checkpoints stand beside each other."""
    scale = 100 if _percent(cells[0]["task"]) else 1
    x = [cell["length"] * 2 ** ((place - 4) / 40) for cell in cells]
    value, low, high = ([scale * cell["mean"][key] for cell in cells] for key in ("value", "low", "high"))
    error = [
        [max(0.0, v - low_end) for v, low_end in zip(value, low, strict=True)],
        [max(0.0, high_end - v) for v, high_end in zip(value, high, strict=True)],
    ]
    axes.errorbar(x, value, yerr=error, **_style(name), linewidth=1.1, elinewidth=0.7, marker="o", markersize=2.5)


def _style(name: str) -> dict[str, Any]:
    """A method has one colour; its further seeds are thin dashes."""
    method, seed = method_of(name)
    return {
        "color": _COLOURS[method],
        "linestyle": "-" if seed == 0 else "--",
        "alpha": 1.0 if seed == 0 else 0.55,
        "label": TITLES[method] if seed == 0 else f"{TITLES[method]}, seed {seed}",
    }


def _legend(empty: Any, drawn: Any) -> None:
    empty.axis("off")
    empty.legend(*drawn.get_legend_handles_labels(), loc="center", fontsize=9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("runs", type=Path, help="folder written by longeval demo --seeds")
    runs = parser.parse_args().runs
    if missing := [name for name in ALL_CHECKPOINTS if not (runs / name / "scores.json").is_file()]:
        parser.error(f"no {runs / missing[0] / 'scores.json'}: longeval demo --seeds --out {runs}")
    for name in ALL_CHECKPOINTS:
        folder = find_reference(f"{DEMO}:{name}")[1]
        (folder / "README.md").write_text(card(name, runs / name), encoding="utf-8")
        save_losses(name, folder / "loss.png")
    COMPARISON.mkdir(exist_ok=True)
    (COMPARISON / "README.md").write_text(comparison(ALL_CHECKPOINTS, runs), encoding="utf-8")
    save_all_losses(ALL_CHECKPOINTS, COMPARISON / "loss.png")
    save_comparison(ALL_CHECKPOINTS, runs, COMPARISON / "scores.png")


if __name__ == "__main__":
    main()

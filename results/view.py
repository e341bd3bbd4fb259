"""What a person sees of a run: its tables, and for documents the loss by position as tables, curves and pictures."""

from __future__ import annotations

from rich.console import Group, RenderableType

from longeval.results.aggregate import Scores
from longeval.results.plots import save_plot, terminal_plot
from longeval.results.positions import PositionLoss, positions_table, run_positions
from longeval.results.store import RunFolder
from longeval.results.tables import run_tables

Positions = dict[tuple[str, int], PositionLoss]


def run_view(folder: RunFolder, scores: Scores, width: int = 80) -> RenderableType:
    """Tables of a run, in at most `width` columns where a picture has a width of its own."""
    trained = folder.manifest["info"].get("trained_length")
    parts: list[RenderableType] = [run_tables(folder.manifest, scores)]
    for (task, length), loss in run_positions(folder).items():
        title = f"{task} · {length:,} tokens"
        curves = {folder.manifest["info"]["model"]: loss}
        parts.append(positions_table(loss, title, trained))
        parts.append(terminal_plot(curves, title, trained, width=min(width, 120)))
    return Group(*parts)


def save_plots(folder: RunFolder) -> None:
    """Writes `plots/<task>-<length>.png` for every task and length of documents."""
    info = folder.manifest["info"]
    for (task, length), loss in run_positions(folder).items():
        path = folder.path / "plots" / f"{task.replace('/', '-')}-{length}.png"
        path.parent.mkdir(exist_ok=True)
        save_plot({info["model"]: loss}, path, f"{info['model']} · {task}", info.get("trained_length"))

"""Progress of a run: a bar with tokens/s and time left on a terminal, plain log lines elsewhere."""

from __future__ import annotations

import time
from datetime import timedelta
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

LOG_EVERY = 15.0  # seconds between log lines


class Progress:
    """Counts tokens of finished samples. Skipped (resumed) samples move the bar but not the speed."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f}% {task.fields[speed]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            disable=not console.is_terminal or console.quiet,
            transient=True,
        )
        self._task: TaskID | None = None
        self._total = self._seen = self._prompted = self._generated = self._failed = 0
        self._label = ""
        self._started = self._logged = time.monotonic()

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def building(self, label: str) -> None:
        """Samples of a cell are being built."""
        if self._task is None:
            self._task = self._bar.add_task("", total=None, speed="")
        self._bar.update(self._task, description=f"building {label}")
        if time.monotonic() - self._logged > LOG_EVERY:
            self._log_line(f"building {label}")

    def start(self, total_tokens: int) -> None:
        """Prediction begins; `total_tokens` prompt tokens are planned, finished ones included."""
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task("", total=total_tokens, speed="")
        self._total, self._started = total_tokens, time.monotonic()

    def cell(self, label: str) -> None:
        """A cell's prediction begins."""
        self._label = label
        self._log()

    def skip(self, prompt_tokens: int) -> None:
        """A sample that an earlier run finished."""
        self._seen += prompt_tokens
        self._show()

    def advance(self, prompt_tokens: int, new_tokens: int, failed: bool) -> None:
        """A sample has just been finished."""
        self._seen += prompt_tokens
        self._prompted += prompt_tokens
        self._generated += new_tokens
        self._failed += failed
        self._show()
        if time.monotonic() - self._logged > LOG_EVERY:
            self._log()

    def _speed(self) -> str:
        failed = f" · {self._failed} failed" if self._failed else ""
        if not self._prompted:
            return failed
        speed = (self._prompted + self._generated) / (time.monotonic() - self._started)
        return f"{speed:,.0f} tokens/s{failed}"

    def _show(self) -> None:
        if self._task is not None:
            self._bar.update(self._task, completed=self._seen, description=self._label, speed=self._speed())

    def _log(self) -> None:
        share = self._seen / self._total if self._total else 0.0
        line = f"{self._label} · {share:.0%} of {self._total:,} tokens"
        if self._prompted:
            left = (self._total - self._seen) * (time.monotonic() - self._started) / self._prompted
            line += f" · {self._speed()} · {timedelta(seconds=round(left))} left"
        self._log_line(line)

    def _log_line(self, line: str) -> None:
        """A line where there is no bar."""
        self._logged = time.monotonic()
        if not self._console.is_terminal:  # a quiet console prints nothing by itself
            self._console.print(line, markup=False, highlight=False)

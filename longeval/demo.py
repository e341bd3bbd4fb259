"""The reference checkpoints compared: one run each through the normal loop, on the CPU, and their comparison.

Needles and phone books, state tracking and loss at half to eight times the training length, on samples that training
never saw. Every checkpoint has a run folder of its own, so that what was interrupted goes on.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from threading import Thread

from rich.console import Console

from longeval.config import RunConfig
from longeval.interrupts import interrupts_wait
from longeval.models.reference import DEMO, TRAINED_LENGTH
from longeval.progress import LOG_EVERY
from longeval.results.compare import Comparison, compare

SUITES = ("ruler", "phonebook", "state_tracking", "perplexity")
TASKS = ("niah_single_1", "lookup", "flip_flop", "mqrar_1", "stdlib")
LENGTHS = tuple(TRAINED_LENGTH * times // 2 for times in (1, 2, 4, 8, 16))
LIMIT, LIMIT_TOKENS = 32, 32_768  # 32 samples of a task up to twice the training length, 8 at eight times it
BASELINE = "rope"


def demo_config(checkpoint: str, out: Path) -> RunConfig:
    """The run of one checkpoint, into a folder of its own in `out`."""
    return RunConfig(
        model=f"{DEMO}:{checkpoint}",
        suites=SUITES,
        tasks=TASKS,
        lengths=LENGTHS,
        limit=LIMIT,
        limit_tokens=LIMIT_TOKENS,
        device="cpu",
        backend="torch",
        out=out / checkpoint,
    )


def evaluate(config: RunConfig) -> float:
    """Runs one checkpoint on one thread; its seconds."""
    import torch

    from longeval.evaluate import run

    torch.set_num_threads(1)
    started = time.monotonic()
    run(config)
    return time.monotonic() - started


def _end_at_once() -> None:
    """In a worker: an interrupt, or its parent's end, ends it at once and without a word, whatever it is doing."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    if parent := parent_process():
        parent.join()
        os._exit(1)


def _samples(out: Path, checkpoints: Sequence[str]) -> int:
    """How many lines the run folders hold so far."""
    files = [out / checkpoint / "samples.jsonl" for checkpoint in checkpoints]
    return sum(file.read_bytes().count(b"\n") for file in files if file.is_file())


def demo(checkpoints: Sequence[str], out: Path, console: Console) -> Comparison:
    """Evaluates `checkpoints`, as many at a time as there are cores, and compares them with RoPE."""
    workers = min(len(checkpoints), os.cpu_count() or 1)
    console.print(f"[dim]{len(checkpoints)} checkpoints, {workers} at a time, into {out}[/]", highlight=False)
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _end_at_once)
    try:
        slowest_first = reversed(checkpoints)
        with interrupts_wait():  # in workers until they are ready to end
            running = {pool.submit(evaluate, demo_config(checkpoint, out)): checkpoint for checkpoint in slowest_first}
        left = set(running)
        while left:
            done, left = wait(left, LOG_EVERY, FIRST_COMPLETED)
            ended = [f"{DEMO}:{running[future]} in {future.result():.0f} s" for future in done]
            what = ", ".join(ended) if ended else f"{_samples(out, checkpoints)} samples"
            console.print(f"[dim]{what}, {len(running) - len(left)} of {len(running)} checkpoints[/]", highlight=False)
    except BaseException:  # what the others have finished is in their folders
        for worker in active_children():
            worker.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    return compare([out / checkpoint for checkpoint in checkpoints], out / BASELINE)

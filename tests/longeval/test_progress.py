"""Progress where there is no terminal: log lines."""

import io

import pytest
from rich.console import Console

from longeval.progress import LOG_EVERY, Progress


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only when a test says so."""
    now = [0.0]
    monkeypatch.setattr("longeval.progress.time.monotonic", lambda: now[0])
    return now


def test_long_work_says_where_it_is(clock):
    log = io.StringIO()
    with Progress(Console(file=log)) as progress:
        progress.building("ruler/vt 4k")
        clock[0] += LOG_EVERY + 1
        progress.building("ruler/cwe 4k")
        progress.building("ruler/fwe 4k")
        progress.start(1000)
        progress.cell("ruler/vt 4k")
        clock[0] += 10
        progress.advance(400, 100, failed=False)
        clock[0] += LOG_EVERY - 5
        progress.advance(100, 0, failed=True)
    assert log.getvalue().splitlines() == [
        "building ruler/cwe 4k",
        "ruler/vt 4k · 0% of 1,000 tokens",
        "ruler/vt 4k · 50% of 1,000 tokens · 30 tokens/s · 1 failed · 0:00:20 left",
    ]

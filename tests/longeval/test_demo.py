"""`longeval demo` with few samples at short lengths."""

import os
import signal
import subprocess
import sys
import time

import pytest

import longeval.demo
from longeval.results.store import RunFolder


@pytest.fixture
def demo(monkeypatch, longeval):
    """Runs the command in an empty folder on two short tasks; gives its exit status and output."""
    monkeypatch.setattr("longeval.demo.SUITES", ("phonebook", "state_tracking"))
    monkeypatch.setattr("longeval.demo.TASKS", ("lookup", "flip_flop"))
    monkeypatch.setattr("longeval.demo.LENGTHS", (128, 256))
    monkeypatch.setattr("longeval.demo.LIMIT", 3)
    return lambda *arguments: longeval("demo", *arguments)[:2]


def test_compares_all_methods_and_resumes(demo, tmp_path):
    status, first = demo("--out", "here")
    assert status == 0
    for name in ("rope", "nope", "fox", "path", "path-fox"):
        assert f"demo:{name}" in first
    assert "demo:rope (baseline)" in first
    assert "n = 3 per cell" in first
    rows = RunFolder(tmp_path / "here" / "path").rows()
    assert len(rows) == 9  # no phone book fits 128 tokens
    assert sum(row.score or 0 for row in rows.values()) > 8, rows
    before = (tmp_path / "here" / "path" / "samples.jsonl").read_bytes()
    assert demo("--out", "here") == (status, first)
    assert (tmp_path / "here" / "path" / "samples.jsonl").read_bytes() == before


def test_samples_grow_fewer_with_length():
    config = longeval.demo.demo_config("fox", longeval.demo.Path("out"))
    counts = [min(config.limit, config.limit_tokens // length) for length in config.lengths]
    assert (config.lengths, counts) == ((256, 512, 1024, 2048, 4096), [32, 32, 32, 16, 8])
    assert config.device == "cpu"


COMMAND = """
import signal
from longeval.cli import main

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # where tests run in the background, it is ignored
    main()
"""


@pytest.mark.parametrize(
    ("begun", "whom"),
    [("*/manifest.json", os.killpg), ("", os.killpg), ("*/manifest.json", os.kill)],
)
def test_an_interrupt_ends_it_at_once(begun, whom, tmp_path):
    """While checkpoints are evaluated, and while their processes start, which takes them seconds.

    A terminal interrupts the workers too, others only the first process.
    """
    script = tmp_path / "command.py"  # as the installed command is one, which the processes import again
    script.write_text(COMMAND)
    command = [sys.executable, str(script), "demo", "--out", str(tmp_path)]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert "5 checkpoints" in running.stderr.readline()
    time.sleep(0.4)
    while begun and not list(tmp_path.glob(begun)):
        assert running.poll() is None
        time.sleep(0.1)
    whom(running.pid, signal.SIGINT)
    _, errors = running.communicate(timeout=30)
    assert running.returncode == 130
    assert errors.endswith("interrupted; the same command again resumes\n")
    assert "Traceback" not in errors


def test_workers_end_with_the_command(tmp_path):
    script = tmp_path / "command.py"
    script.write_text(COMMAND)
    command = [sys.executable, str(script), "demo", "--out", str(tmp_path)]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while not list(tmp_path.glob("*/manifest.json")):
        assert running.poll() is None
        time.sleep(0.1)
    running.kill()
    running.communicate(timeout=30)  # no sooner than the last worker has ended: they share its error stream

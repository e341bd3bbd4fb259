"""kill -9 at any moment, and the same command again: no sample lost or doubled, the same scores."""

import json
import os
import random
import signal
import subprocess
import sys
import time

COMMAND = [sys.executable, "-m", "longeval", "run", "--model", "demo", "--suite", "ruler,state_tracking"]
COMMAND += ["--tasks", "niah_single_1,vt,flip_flop", "--lengths", "1k,2k", "--limit", "6"]
COMPARED = ("id", "prediction", "score", "scores", "prompt_tokens", "new_tokens", "finish_reason", "meta")


def rows(folder):
    file = folder / "samples.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def run_and_kill(folder, rng):
    """Starts the run and kills it at a random moment after its next row, or while it starts."""
    process = subprocess.Popen([*COMMAND, "--out", str(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    before = (folder / "samples.jsonl").stat().st_size if (folder / "samples.jsonl").is_file() else 0
    while process.poll() is None:
        size = (folder / "samples.jsonl").stat().st_size if (folder / "samples.jsonl").is_file() else 0
        if size > before:
            time.sleep(rng.uniform(0, 0.3))
            os.kill(process.pid, signal.SIGKILL)
        time.sleep(0.01)
    return process.returncode


def test_killed_runs_end_like_an_undisturbed_one(tmp_path):
    undisturbed = tmp_path / "undisturbed"
    subprocess.run([*COMMAND, "--out", str(undisturbed)], check=True, capture_output=True)
    rng, killed, statuses = random.Random(0), tmp_path / "killed", []
    while not statuses or (statuses[-1] != 0 and len(statuses) < 6):
        statuses.append(run_and_kill(killed, rng))
    assert -signal.SIGKILL in statuses
    if statuses[-1] != 0:
        subprocess.run([*COMMAND, "--out", str(killed)], check=True, capture_output=True)

    expected, found = rows(undisturbed), rows(killed)
    assert len(expected) == 36
    assert sorted(row["id"] for row in found) == sorted(row["id"] for row in expected)
    by_id = {row["id"]: row for row in found}
    for row in expected:
        assert {key: by_id[row["id"]][key] for key in COMPARED} == {key: row[key] for key in COMPARED}
    assert json.loads((killed / "scores.json").read_text()) == json.loads((undisturbed / "scores.json").read_text())
    assert sorted(p.name for p in (killed / "nll").iterdir()) == sorted(p.name for p in (undisturbed / "nll").iterdir())

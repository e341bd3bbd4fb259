"""Whatever a model answers is scored, and bounded scores stay within their bounds: every rule of every suite."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from small_tokenizers import byte_level

from longeval.tasks import SUITES, Sample, get_suite, get_task
from longeval.types import TokenScores

TASKS = [get_task(f"{suite}/{short}") for suite in SUITES for short in get_suite(suite).tasks]
RULES = {f"{task.suite} {task.metric}": task for task in reversed(TASKS) if task.kind == "generate"}
STATE_TRACKING = [task for task in TASKS if task.suite == "state_tracking"]
REFERENCES = {
    "ruler": ["1234567", "no"],
    "babilong": ["garden"],
    "phonebook": ["6730215736"],
    "longbench_e": ["Paragraph 7 was here. The answer, a number of words; x = f(y)  # 7", "7"],
}
HUGE = 100_000


def test_every_suite_with_bounded_scores_is_here():
    assert {task.suite for task in RULES.values()} | {"state_tracking", "perplexity"} == set(SUITES)
    assert len(RULES) == 2 + 1 + 1 + 6


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=300))
@example(text="")
@example(text="\x00\x01\x1b\n\r\t\v\x85\u2028")
@example(text="é漢字🦆\u0301\u200b")
@example(text="\ud800")
@example(text="a" * HUGE)
@example(text="the answer. " * (HUGE // 12))
@example(text="garden " * (HUGE // 7))
@example(text="7 " * (HUGE // 2))
@example(text="\n" * HUGE)
@example(text="." * HUGE)
@example(text="`#//" * (HUGE // 4))
def test_any_text(rule, text):
    task = RULES[rule]
    references = REFERENCES[task.suite][:1] if "retrieval" in rule else REFERENCES[task.suite]
    meta = {"question": "Where is Mary? ", "all_classes": ["The answer", "number", "7"]}
    scores = task.score(text, Sample("", task.name, 0, "", (), references=references, meta=meta))
    assert list(scores) == [task.metric, *task.beside]
    assert all(isinstance(score, float) and 0.0 <= score <= 1.0 for score in scores.values())


@pytest.fixture(scope="module")
def sequences():
    return {task.name: task.build(byte_level(), 777, 1)[0] for task in STATE_TRACKING}


@pytest.mark.parametrize("task", STATE_TRACKING, ids=lambda task: task.short_name)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), right=st.floats(0, 1), impossible=st.floats(0, 1))
@example(seed=0, right=0.0, impossible=1.0)
@example(seed=0, right=1.0, impossible=0.0)
def test_any_log_probabilities(task, sequences, seed, right, impossible):
    sample = sequences[task.name]
    rng = np.random.default_rng(seed)
    size = len(sample.ids) - 1
    logprobs = np.where(rng.random(size) < impossible, -np.inf, -rng.exponential(10, size)).astype(np.float32)
    scores = task.score(TokenScores(logprobs, rng.random(size) < right), sample)
    assert list(scores) == ["accuracy", "exact", "nll"]
    assert 0.0 <= scores["exact"] <= scores["accuracy"] <= 1.0
    assert scores["nll"] >= 0.0

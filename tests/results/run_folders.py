"""Run folders for tests: real suites, store and aggregation; made-up answers."""

import random

import numpy as np

from longeval.plan import suite_info
from longeval.results.aggregate import rebuild_scores
from longeval.results.store import Row, RunFolder, create_or_resume
from longeval.tasks import TaskOptions, get_suite
from longeval.tasks.base import Task

VALUES = {"string_match_all": (0.0, 0.25, 0.5, 0.75, 1.0)}


def build_run(
    path,
    model="tiny",
    suite="ruler",
    *,
    tasks=None,
    lengths=(1024, 2048, 4096),
    n=20,
    seed=0,
    skill=0.7,
    slope=0.15,
    trained=2048,
    tokenizer="aaaa",
    dtype="float32",
    versions=None,
    unfit=(),
    change=lambda row: row,
):
    """A finished run. `skill` falls by `slope` a length. `change` may alter a row, or drop it by returning None."""
    definition = get_suite(suite)
    chosen = [definition.tasks[short](short, TaskOptions()) for short in tasks or definition.tasks]
    cells = [(task, length) for length in lengths for task in chosen]
    decides = {
        "longeval": "0.1.0",
        "model": {"checkpoint_hash": model, "backend": "torch", "dtype": dtype, "device": "cpu"},
        "tokenizer_hash": tokenizer,
        "chat": False,
        "seed": seed,
        "limit": n,
        "overflow": "refuse",
        "options": {"haystack": "essay"},
        "tasks": {
            task.name: {"version": (versions or {}).get(task.short_name, task.version), "lengths": list(lengths)}
            for task in chosen
        },
    }
    info = {
        "model": f"models/{model}",
        "trained_length": trained,
        "provenance": {"checkpoint_hash": model, "backend": "torch", "dtype": dtype, "device": "cpu"},
        "suites": [suite_info(suite, chosen)],
        "cells": [_plan(task, length, n, (task.short_name, length) in unfit) for task, length in cells],
        "created": "2030-01-01T00:00:00+00:00",
        "command": ["longeval", "run"],
        "git": None,
        "packages": {},
    }
    with create_or_resume(path, decides, info) as folder:
        for rank, length in enumerate(lengths):
            for task in chosen:
                for index in range(n if (task.short_name, length) not in unfit else 0):
                    row, nll = _row(task, length, seed, index, model, skill - slope * rank)
                    if (row := change(row)) is not None:
                        folder.append(row, nll)
    rebuild_scores(RunFolder(path))
    return path


def _plan(task, length, n, unfit):
    return {
        "task": task.name,
        "length": length,
        "label": task.length_label(length),
        "planned": n,
        "prompt_tokens": n * length,
        "fits": not unfit,
        "smallest": length + 100 if unfit else None,
    }


def _row(task: Task, length, seed, index, model, skill):
    """The question's difficulty is the same for every model; a model's own luck is small beside it."""
    sample_id = f"{task.name}/{length}/{seed}/{index}"
    question, luck = random.Random(sample_id), random.Random(f"{sample_id}/{model}")
    depth, ease = round(100 * question.random(), 2), question.random()
    if task.kind == "logprob" and not task.percent:
        nll = np.array([luck.gauss(2.5 - skill + (3 if i > length // 2 else 0), 0.1) for i in range(128)], np.float32)
        scores = {"nll": float(nll.mean()), "bits_per_byte": float(nll.mean()) / 2.8}
        meta = {"document": f"book {index}", "first_position": 1, "bytes": 500, "left_out": 2}
        return Row(
            sample_id, task.name, length, length, references=[], score=scores["nll"], scores=scores, meta=meta
        ), nll
    good = ease + 0.2 * luck.random() < skill + 0.1
    value = float(good)
    if task.metric == "string_match_all" and task.short_name in (
        "niah_multivalue",
        "niah_multiquery",
        "vt",
        "cwe",
        "fwe",
    ):
        value = min(1.0, max(0.0, round(4 * (skill + 0.3 - ease)) / 4))
    answer = str(question.randrange(10**6, 10**7))
    row = Row(
        sample_id,
        task.name,
        length,
        prompt_tokens=length - 100,
        new_tokens=12,
        prediction=answer if good else f"I <b>do</b> not know {answer[::-1]} & won't",
        references=[answer],
        score=value,
        scores={task.metric: value},
        finish_reason="stop",
        seconds=0.1,
        prompt_tail=f"… One of the special magic numbers is: {answer}. What is the special magic number? </script> The",
        meta={"depths": [depth]} if task.category == "retrieval" else {},
    )
    return row, None

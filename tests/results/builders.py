"""Small manifests and rows for tests of aggregation and tables."""

from longeval.results.store import Row


def task(name, category="retrieval", percent=True):
    return {"name": name, "category": category, "metric": "recall", "percent": percent, "version": "1"}


def manifest(
    tasks, lengths=(4096,), planned=4, *, all_tasks=None, averages=None, unfit=(), threshold=None, trained=None
):
    suite = {
        "name": "s",
        "title": "Suite",
        "unit": "tokens",
        "tasks": tasks,
        "all_tasks": all_tasks or tasks,
        "averages": averages if averages is not None else [{"name": "average", "over": "tasks", "members": []}],
        "effective_threshold": threshold,
        "notes": [],
    }
    cells = [
        {
            "task": t["name"],
            "length": length,
            "label": f"{length // 1024}k",
            "planned": planned,
            "prompt_tokens": 0,
            "fits": (t["name"], length) not in unfit,
            "smallest": 5000 if (t["name"], length) in unfit else None,
        }
        for length in lengths
        for t in tasks
    ]
    info = {"model": "tiny", "trained_length": trained, "suites": [suite], "cells": cells}
    protocols = {t["name"]: {"version": "1"} for t in tasks}
    decides = {"longeval": "0", "model": {}, "tokenizer_hash": "t", "tasks": protocols}
    return {"format": 1, "decides": decides, "info": info}


def rows(task_name, scores, length=4096, **more):
    return [
        Row(
            id=f"{task_name}/{length}/0/{i}",
            task=task_name,
            length=length,
            prompt_tokens=10,
            prediction="x",
            score=score,
            scores={} if score is None else {"recall": score, "substring": 1.0},
            error="RuntimeError: no" if score is None else None,
            **more,
        )
        for i, score in enumerate(scores)
    ]

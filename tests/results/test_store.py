"""The run folder: nothing lost, nothing doubled, nobody else's data overwritten."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from longeval.errors import UserError
from longeval.results.store import Row, RunFolder, create_or_resume

DECIDES = {"longeval": "0", "model": {}, "tokenizer_hash": "t", "seed": 0, "tasks": {"ruler/vt": {"version": "1"}}}
VT = {"name": "ruler/vt", "category": "tracing", "metric": "recall", "percent": True}
RULER = {"name": "ruler", "title": "RULER", "unit": "tokens", "tasks": [VT], "all_tasks": [VT], "averages": []}
CELL = {"task": "ruler/vt", "length": 4096, "label": "4k", "planned": 2, "fits": True, "smallest": None}
INFO = {"model": "m", "suites": [RULER], "cells": [CELL]}


def row(index: int, **more) -> Row:
    return Row(id=f"ruler/vt/4096/0/{index}", task="ruler/vt", length=4096, prompt_tokens=10, **more)


def test_rows_come_back(tmp_path):
    with create_or_resume(tmp_path / "run", DECIDES, INFO) as folder:
        folder.append(row(0, prediction="a\u2028b\nc", score=0.5, scores={"recall": 0.5}))
    (stored,) = RunFolder(tmp_path / "run").rows().values()
    assert stored == row(0, prediction="a\u2028b\nc", score=0.5, scores={"recall": 0.5})


def test_torn_row_is_dropped_and_nothing_else(tmp_path):
    with create_or_resume(tmp_path, DECIDES, INFO) as folder:
        folder.append(row(0))
        folder.append(row(1))
    whole = (tmp_path / "samples.jsonl").read_bytes()
    for cut in range(1, len(whole) // 2):
        (tmp_path / "samples.jsonl").write_bytes(whole[:-cut])
        assert set(RunFolder(tmp_path).rows()) == {row(0).id}
        with create_or_resume(tmp_path, DECIDES, INFO) as folder:
            folder.append(row(1))
        assert (tmp_path / "samples.jsonl").read_bytes() == whole


def test_last_row_of_a_sample_counts(tmp_path):
    with create_or_resume(tmp_path, DECIDES, INFO) as folder:
        folder.append(row(0, error="OutOfMemoryError: x"))
        folder.append(row(0, score=1.0))
    assert [r.score for r in RunFolder(tmp_path).rows().values()] == [1.0]


def test_nll_is_there_before_its_row(tmp_path):
    nll = np.array([0.5, 1.25], dtype=np.float32)
    with create_or_resume(tmp_path, DECIDES, INFO) as folder:
        folder.append(row(0), nll)
    np.testing.assert_array_equal(RunFolder(tmp_path).nll(row(0).id), nll)
    assert RunFolder(tmp_path).nll(row(0).id).dtype == np.float32


def test_another_configuration_is_refused_with_its_keys(tmp_path):
    create_or_resume(tmp_path, DECIDES, INFO).close()
    with pytest.raises(UserError, match=r"seed: 0 there, 1 now; tasks\.ruler/vt\.version: 1 there, 2 now"):
        create_or_resume(tmp_path, DECIDES | {"seed": 1, "tasks": {"ruler/vt": {"version": "2"}}}, INFO)


def test_information_does_not_decide(tmp_path):
    create_or_resume(tmp_path, DECIDES, INFO | {"created": "then"}).close()
    create_or_resume(tmp_path, DECIDES, INFO | {"created": "now"}).close()
    assert RunFolder(tmp_path).manifest["info"]["created"] == "then"


def test_two_writers_are_refused(tmp_path):
    with (
        create_or_resume(tmp_path, DECIDES, INFO),
        pytest.raises(UserError, match="another process is writing"),
    ):
        create_or_resume(tmp_path, DECIDES, INFO)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"id": 1, "tas', "no manifest"),
        (b"hello\n", "no manifest"),
    ],
)
def test_somebody_elses_samples_are_left_alone(tmp_path, content, message):
    (tmp_path / "samples.jsonl").write_bytes(content)
    with pytest.raises(UserError, match=message):
        create_or_resume(tmp_path, DECIDES, INFO)
    assert (tmp_path / "samples.jsonl").read_bytes() == content


@pytest.mark.parametrize("line", ["{broken", '{"a": 1}', "[]", "\udc80"])
def test_foreign_line_is_named(tmp_path, line):
    with create_or_resume(tmp_path, DECIDES, INFO) as folder:
        folder.append(row(0))
    with (tmp_path / "samples.jsonl").open("a", errors="surrogateescape") as file:
        file.write(line + "\n")
    with pytest.raises(UserError, match=r"samples\.jsonl line 2"):
        RunFolder(tmp_path).rows()


def test_a_folder_of_other_files_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds notes\.txt and no manifest.json"):
        create_or_resume(tmp_path, DECIDES, INFO)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_unwritable_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write to"):
        create_or_resume(tmp_path / "file" / "run", DECIDES, INFO)


@pytest.mark.parametrize(
    "manifest",
    [
        "{",
        "[]",
        json.dumps({"format": 99}),
        json.dumps({"format": 1, "info": None}),
        json.dumps({"format": 1, "decides": {}, "info": {"model": "m", "cells": []}}),
        "[" * 100_000,
    ],
)
def test_broken_manifest(tmp_path, manifest):
    (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(UserError, match=r"manifest\.json"):
        RunFolder(tmp_path)


@pytest.mark.parametrize(
    ("part", "change", "named"),
    [
        ("info", {"cells": [{}]}, r"info\.cells\[0\]\.task is missing"),
        ("info", {"cells": [CELL, 2]}, r"info\.cells\[1\] is missing or of the wrong type"),
        ("info", {"cells": [CELL | {"label": 4}]}, r"info\.cells\[0\]\.label"),
        ("info", {"suites": [RULER | {"tasks": [VT | {"percent": 1}]}]}, r"info\.suites\[0\]\.tasks\[0\]\.percent"),
        ("info", {"cells": [CELL | {"task": "ruler/cwe"}]}, "does not describe ruler/cwe"),
        ("decides", {"tasks": {}}, "does not describe ruler/vt"),
        ("decides", {"model": None}, r"decides\.model"),
    ],
)
def test_what_is_missing_in_a_manifest_is_named(tmp_path, part, change, named):
    manifest = {"format": 1, "decides": DECIDES, "info": INFO}
    manifest[part] = manifest[part] | change
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=rf"manifest\.json:? {named}"):
        RunFolder(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [("id", 1), ("length", "4k"), ("score", "1"), ("scores", {"recall": "x"}), ("meta", []), ("references", "a")],
)
def test_a_row_of_wrong_types_is_named(tmp_path, field, value):
    create_or_resume(tmp_path, DECIDES, INFO).close()
    (tmp_path / "samples.jsonl").write_text(json.dumps({**asdict(row(0)), field: value}) + "\n")
    with pytest.raises(
        UserError, match=rf"samples\.jsonl line 1: not a longeval row \(wrong type: {field}\); delete this line"
    ):
        RunFolder(tmp_path).rows()


def test_a_row_of_another_run_is_named(tmp_path):
    info = INFO | {"cells": [CELL | {"length": 8192}]}
    with create_or_resume(tmp_path, DECIDES, info) as folder:
        folder.append(row(0))
    with pytest.raises(UserError, match="ruler/vt at 4096 is no part of this run"):
        RunFolder(tmp_path).rows()


@pytest.mark.parametrize("content", [None, b"", b"nonsense"])
def test_losses_that_are_gone_or_broken(tmp_path, content):
    with create_or_resume(tmp_path, DECIDES, INFO) as folder:
        folder.append(row(0), np.zeros(2, np.float32))
        folder.nll_path(row(0).id).unlink()
        if content is not None:
            folder.nll_path(row(0).id).write_bytes(content)
        with pytest.raises(UserError, match="the same run command again replaces it"):
            folder.nll(row(0).id)

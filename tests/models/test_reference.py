"""The reference checkpoints, their training data and their training."""

import json
import random
import re
import shutil
import sys

import numpy as np
import pytest
import torch
from safetensors import safe_open

from longeval.errors import UserError
from longeval.models import find_model, load_model
from longeval.models.reference import (
    ALL_CHECKPOINTS,
    TRAINED_LENGTH,
    cards,
    data,
    find_reference,
    tokenizer,
    train,
)
from longeval.models.reference.documents import END, FIRST_TRAINED, KINDS, texts
from longeval.models.reference.methods import METHODS, new_network
from longeval.models.reference.stories import story
from longeval.tasks import get_task
from longeval.tasks.perplexity.documents import stdlib_documents

# ---- documents and rows


@pytest.mark.parametrize("units", [12, 60])
@pytest.mark.parametrize("kind", KINDS)
def test_answers_can_be_told_from_what_stands_before_them(kind, units):
    """Everything but a flip of a coin: names, numbers and values stand in the text before they are asked for."""
    for seed in range(5):
        document = KINDS[kind].make(random.Random(seed), units)
        assert document.answers
        assert document.text.endswith(END)
        for first, last in document.answers:
            answer = document.text[first:last].replace(END, "").strip(" .\n")
            for word in answer.split():
                assert word in document.text[:first]
    assert KINDS[kind].make(random.Random(1), units) == KINDS[kind].make(random.Random(1), units)


@pytest.mark.parametrize(("task", "kind"), [("phonebook/lookup", "phone book"), ("ruler/niah_single_1", "needles")])
def test_training_asks_as_evaluation_does(task, kind):
    """The prompt of a sample and a training document agree once names, numbers and noise are left out."""
    sample = get_task(task).build(tokenizer.load(), 512, 1)[0]
    asked = tokenizer.load().decode(sample.ids, skip_special_tokens=True)
    shape = {word for word in asked.replace("\n", " ").split() if word.islower()}
    taught = " ".join(KINDS[kind].make(random.Random(seed), 12).text for seed in range(8))
    assert shape - {"-"} - set(sample.meta.get("query", "").split()) <= set(taught.replace("\n", " ").split())
    assert asked.endswith(":" if kind == "phone book" else "is")


@pytest.mark.parametrize(("length", "kind"), [(32, "recall"), (128, "phone book")])
def test_rows_are_full_and_labelled(length, kind):
    tokens, labels = data.make_rows(length, 0, 40)
    assert tokens.shape == labels.shape == (40, length + 1)
    assert tokens.max() < tokenizer.VOCABULARY
    assert (tokens[:, 0] == tokenizer.BOS).all()
    assert set(np.unique(labels)) >= {data.PROMPT, data.TEXT, data.LABELS.index(kind)}
    again, _ = data.make_rows(length, 7, 8)
    np.testing.assert_array_equal(again[0], tokens[7])


def test_labels_stand_on_the_answers_tokens():
    document = KINDS["phone book"].make(random.Random(3), 5)
    ids, labels = data.encode(document, 9)
    answered = tokenizer.load().decode([token for token, label in zip(ids, labels, strict=True) if label == 9])
    expected = "".join(document.text[first:last] for first, last in document.answers)
    assert answered.replace("\n\n", "\n") == expected  # behind the shots, one token is a line break and an empty line
    assert labels[0] == data.PROMPT


def test_evaluated_repositories_are_not_trained_on():
    trained = texts()[1]
    evaluated = [document for document in stdlib_documents() if document.name < FIRST_TRAINED]
    long_enough = [document for document in evaluated if (document.most_tokens or 0) > 16 * 8 * TRAINED_LENGTH]
    assert len(long_enough) >= 16  # so many documents at eight times the training length come before FIRST_TRAINED
    for document in evaluated:
        for part in document.parts:
            assert len(part) < 500 or part[:500] not in trained


@pytest.mark.parametrize("seed", range(20))
def test_answers_in_stories_follow_from_what_was_told(seed):
    place, carrier, asked = {}, {}, 0
    for line in story(random.Random(seed)).splitlines():
        if said := re.fullmatch(r"Where is (?:the )?(\w+)\? (\w+)", line):
            asked += 1
            assert place[carrier.get(said[1], said[1])] == said[2]
        elif said := re.fullmatch(r"(\w+) (?:walked|hurried|went over|ran) to the (\w+)\.", line):
            assert place.get(said[1]) != said[2]
            place[said[1]] = said[2]
        elif said := re.fullmatch(r"(\w+) (?:took|picked up|lifted) the (\w+)\.", line):
            assert said[2] not in carrier
            assert place.get(said[2], place[said[1]]) == place[said[1]]
            carrier[said[2]] = said[1]
        else:
            said = re.fullmatch(r"(\w+) (?:put down|left|set down) the (\w+)(?: there)?\.", line)
            assert carrier.pop(said[2]) == said[1]
            place[said[2]] = place[said[1]]
    assert asked


def test_text_of_every_kind_is_in_the_rows():
    tokens, labels = data.make_rows(512, 0, 60)
    read = [tokenizer.load().decode(row[mark == data.TEXT])[:40] for row, mark in zip(tokens, labels, strict=True)]
    for text in texts():
        assert any(len(start) == 40 and start in text for start in read)


# ---- tokenizer


@pytest.mark.parametrize("text", ["plain", "  two  spaces\n\n\ttab", "naïve 中文 🙂", "\x00\x7f", "x = 10\n    y"])
def test_text_survives_the_tokenizer(text):
    made = tokenizer.load()
    ids = made(text)["input_ids"]
    assert ids[0] == tokenizer.BOS
    assert made.decode(ids[1:]) == text


def test_special_ids_and_digits():
    made = tokenizer.load()
    assert (made.bos_token_id, made.eos_token_id, len(made)) == (tokenizer.BOS, tokenizer.EOS, tokenizer.VOCABULARY)
    assert made("\n", add_special_tokens=False)["input_ids"] == [tokenizer.NEWLINE]
    assert len(made(" 1234567", add_special_tokens=False)["input_ids"]) == 7


# ---- training


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    data.write(folder, {128: 24, 512: 16}, workers=1)
    return folder


PHASES = (train.Phase(128, 2, 4), train.Phase(512, 1, 2))


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(train, "HELD_OUT", 2)
    monkeypatch.setattr(train, "LOG_EVERY", 2)


def training(method, rows):
    return train.Training(method, 0, rows, PHASES, torch.device("cpu"))


@pytest.mark.parametrize("method", METHODS)
def test_forward_is_the_backends(method, tmp_path, rows):
    """What is trained is what the backend runs, from the saved file: weights rounded to bfloat16 in both."""
    network, names = new_network(method, 3)
    for parameter in network.parameters():
        parameter.data = (parameter.data * (8 if parameter.dim() > 1 else 1)).bfloat16().float()
    train.save_checkpoint(network, names, METHODS[method], tmp_path)
    ids = torch.from_numpy(np.load(rows / "tokens-512.npy")[0].astype(np.int64))
    with torch.no_grad():
        h = network.model.embeddings(ids[None, :-1])
        for block in network.model.blocks:
            h = train.run_block(block, h)
        losses = train.token_losses(network, h, ids[None, 1:])
    np.testing.assert_allclose(-load_model(str(tmp_path)).logprobs(ids.tolist()), losses, atol=2e-3)


def test_an_interrupted_training_ends_like_an_undisturbed_one(tmp_path, rows, monkeypatch):
    training("path-fox", rows).run(tmp_path / "undisturbed")
    monkeypatch.setattr(train, "SAVE_EVERY", 3)
    interrupted = training("path-fox", rows)
    steps = 0

    def step(*arguments):
        nonlocal steps
        steps += 1
        if steps == 5:
            raise KeyboardInterrupt
        return type(interrupted).one_step(interrupted, *arguments)

    monkeypatch.setattr(interrupted, "one_step", step)
    with pytest.raises(KeyboardInterrupt):
        interrupted.run(tmp_path / "resumed")
    again = training("path-fox", rows)
    again.run(tmp_path / "resumed")
    found, expected = (torch.load(tmp_path / name / "state.pt") for name in ("resumed", "undisturbed"))
    for name, tensor in expected["network"].items():
        torch.testing.assert_close(found["network"][name], tensor, rtol=0, atol=0)
    logs = [(tmp_path / name / "loss.jsonl").read_text() for name in ("resumed", "undisturbed")]
    assert logs[0] == logs[1]
    assert [json.loads(line)["step"] for line in logs[0].splitlines()] == [2, 4, 6, 6]


def test_another_trainings_state_is_refused(tmp_path, rows):
    training("nope", rows).run(tmp_path)
    with pytest.raises(UserError, match=r"state of another training \(nope, seed 0, 4 steps on 2 rows of 128, "):
        training("fox", rows).run(tmp_path)


@pytest.mark.parametrize(
    ("main", "arguments", "said"),
    [
        (train.main, ["--method", "fox", "--data", "nowhere", "--out", "out"], "no nowhere/tokens-32.npy: python -m"),
        (cards.main, ["nowhere"], "no nowhere/rope/scores.json: longeval demo --seeds --out nowhere"),
    ],
)
def test_missing_files_are_named(main, arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["command", *arguments])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert said in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def damaged(folder, file):
    """What to do to one file of a data folder, by name."""
    path = folder / file
    return {
        "gone": path.unlink,
        "cut": lambda: path.write_bytes(path.read_bytes()[:1000]),
        "shorter": lambda: np.save(path, np.load(path)[:5]),
        "changed": lambda: path.write_text("{}"),
    }


@pytest.mark.parametrize(
    ("file", "damage", "said"),
    [
        ("labels-128.npy", "gone", r"no .*labels-128\.npy: python -m longeval\.models\.reference\.data"),
        ("tokens-512.npy", "cut", r"tokens-512\.npy or labels-512\.npy is damaged"),
        ("labels-512.npy", "shorter", r"no rows of 512 \+ 1 tokens in common"),
        ("tokenizer.json", "changed", "tokens of another tokenizer"),
    ],
)
def test_bad_data_is_refused(file, damage, said, rows, tmp_path):
    folder = shutil.copytree(rows, tmp_path / "data")
    damaged(folder, file)[damage]()
    with pytest.raises(UserError, match=said):
        training("fox", folder)


def test_too_few_rows_are_refused(rows, monkeypatch):
    monkeypatch.setattr(train, "HELD_OUT", 16)
    with pytest.raises(UserError, match="16 rows of 512 tokens; 16 are held out"):
        training("fox", rows)


def test_a_state_of_other_data_is_refused(rows, tmp_path):
    training("nope", rows).run(tmp_path / "out")
    folder = shutil.copytree(rows, tmp_path / "data")
    np.save(folder / "labels-512.npy", 0 * np.load(folder / "labels-512.npy"))
    with pytest.raises(UserError, match="state of another training"):
        training("nope", folder).run(tmp_path / "out")


def test_every_method_sees_the_same_rows(rows):
    one, other = training("rope", rows), training("path", rows)
    for ours, theirs in zip(one.rows, other.rows, strict=True):
        torch.testing.assert_close(ours.order, theirs.order, rtol=0, atol=0)
        assert ours.order.min() >= 2  # not the held-out ones


def test_gates_and_transitions_start_with_spread_memories():
    network, _ = new_network("path-fox", 0)
    attention = network.model.blocks[0].attn
    log_f = torch.nn.functional.logsigmoid(attention.f_proj.bias) * network.arch.head_dim**-0.5
    spans = 1 / (1 - log_f.exp())
    torch.testing.assert_close(spans[[0, -1]], torch.tensor([4.0, 1024.0]), rtol=1e-3, atol=0)
    beta = 2 * torch.sigmoid(attention.bt_proj.bias)
    assert (beta.diff() <= 0).all()
    assert beta[0] <= 1


def test_nope_knows_no_positions():
    """Shuffling what stands before the last token does not move its prediction, in one layer."""
    network, _ = new_network("nope", 0)
    assert not torch.nn.functional.logsigmoid(network.model.blocks[0].attn.f_proj.bias).any()
    h = torch.randn(1, 40, network.arch.hidden_size)
    shuffled = torch.cat([h[:, torch.randperm(39)], h[:, 39:]], dim=1)
    one, other = (train.run_block(network.model.blocks[0], x)[:, -1] for x in (h, shuffled))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


# ---- what ships


@pytest.mark.parametrize("name", ALL_CHECKPOINTS)
def test_shipped_checkpoints(name):
    full, folder = find_reference(f"demo:{name}")
    assert full == f"demo:{name}"
    assert (folder / "model.safetensors").stat().st_size <= 4 * 2**20
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert {str(file.get_tensor(key).dtype) for key in file.keys()} == {"torch.bfloat16"}  # noqa: SIM118
    method = name.removesuffix("-1").removesuffix("-2")
    assert json.loads((folder / "config.json").read_text()) == METHODS[method]
    for file in tokenizer.FOLDER.iterdir():
        assert (folder / file.name).read_bytes() == file.read_bytes()
    card = (folder / "README.md").read_text()
    for said in ("Apache-2.0", "seed", "training length", "loss.png", "cannot"):
        assert said in card


@pytest.mark.parametrize(("name", "full"), [("demo", "demo:path-fox"), ("demo:nope", "demo:nope")])
def test_a_shipped_checkpoint_looks_up_what_it_never_saw(name, full):
    model = load_model(name)
    assert (model.name, model.trained_length, model.bos) == (full, TRAINED_LENGTH, tokenizer.BOS)
    samples = get_task("phonebook/lookup").build(model.tokenizer, 256, 8, seed=5)
    found = {g.index: g.text for g in model.generate([sample.ids for sample in samples], 20)}
    right = [found[index].strip() == sample.references[0] for index, sample in enumerate(samples)]
    assert sum(right) >= 6


def test_unknown_names():
    with pytest.raises(UserError, match="did you mean demo:path-fox"):
        find_model("demo:pathfox")

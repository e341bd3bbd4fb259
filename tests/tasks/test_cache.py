"""The cache of built samples: same samples as building, nothing built twice, damage mended, size bounded."""

import copy
import os
from dataclasses import replace

import pytest
from ruler_data import CHAT, write_corpora
from small_tokenizers import bpe, byte_level, metaspace

from longeval.errors import UserError
from longeval.paths import cache_dir
from longeval.tasks import DoesNotFit, Sample, Shot, Task, TaskOptions, get_task
from longeval.tasks.cache import build_cached, entry_name, read_segment, tokenizer_hash, write_segment


class Counting(Task):
    """Makes samples out of their index, `most` of them, and remembers which it was asked for."""

    suite, version, metric, category, lengths, count = "test", "1", "m", "c", (8,), 4

    def __init__(self, most=1000, version="1"):
        super().__init__("counting", TaskOptions())
        self.most = most
        self.version = version
        self.asked = []

    def build(self, tokenizer, length, count=None, seed=0, *, chat=False):
        return self.build_range(tokenizer, length, range(count), seed, chat=chat)

    def build_range(self, tokenizer, length, indices, seed=0, *, chat=False):
        self.asked.append((indices.start, indices.stop))
        if length < 4:
            raise DoesNotFit(4)
        return [
            Sample(
                id=f"test/counting/{length}/{seed}/{index}",
                task=self.name,
                length=length,
                prompt=f"Prompt {index} – \n",
                ids=(index, 70_000 + index, 1),
                references=[str(index)],
                answer_prefix=" A:",
                shots=(Shot("q", "a"),),
                max_new_tokens=3,
                stop=("\n",),
                meta={"depths": [0.5, index], "nested": {"ok": None}},
            )
            for index in indices
            if index < self.most
        ]

    def score(self, prediction, sample):
        return {"m": 0.0}


def entries():
    return sorted((cache_dir() / "samples").iterdir())


def test_what_is_built_comes_back_and_is_not_built_again():
    task = Counting()
    built = Counting().build(bpe(), 8, 6)
    assert build_cached(task, bpe(), 8, 6) == built
    again = Counting()
    assert build_cached(again, copy.deepcopy(bpe()), 8, 6) == built  # another model with the same tokenizer
    assert build_cached(again, bpe(), 8, 2) == built[:2]
    assert again.asked == []


def test_asking_for_more_builds_only_the_rest():
    task = Counting()
    for count in (2, 5, 5, 9):
        assert build_cached(task, bpe(), 8, count) == Counting().build(bpe(), 8, count)
    assert task.asked == [(0, 2), (2, 5), (5, 9)]


def test_a_task_without_more_samples_is_not_asked_again():
    task = Counting(most=3)
    for _ in range(2):
        assert len(build_cached(task, bpe(), 8, 10)) == 3
    assert task.asked == [(0, 10)]


def test_does_not_fit_passes_through_and_keeps_nothing():
    with pytest.raises(DoesNotFit):
        build_cached(Counting(), bpe(), 2, 3)
    assert not (cache_dir() / "samples").exists()


def test_whatever_decides_a_sample_names_another_entry(tmp_path):
    chat = copy.deepcopy(bpe())
    chat.chat_template = CHAT
    write_corpora(tmp_path)
    options = TaskOptions(data_dir=tmp_path)
    names = {
        entry_name(Counting(), bpe(), 8, 0, False),
        entry_name(Counting(), bpe(), 9, 0, False),
        entry_name(Counting(), bpe(), 8, 1, False),
        entry_name(Counting(version="2"), bpe(), 8, 0, False),
        entry_name(Counting(), metaspace(), 8, 0, False),
        entry_name(Counting(), bpe("declared"), 8, 0, False),  # no BOS
        entry_name(Counting(), chat, 8, 0, True),
        entry_name(get_task("ruler/niah_single_2", options), bpe(), 8, 0, False),
        entry_name(get_task("ruler/niah_single_2", replace(options, haystack="stdlib")), bpe(), 8, 0, False),
    }
    (tmp_path / "PaulGrahamEssays.json").write_text('{"text": "other"}')
    names.add(entry_name(get_task("ruler/niah_single_2", options), bpe(), 8, 0, False))
    assert len(names) == 10
    assert entry_name(Counting(), bpe(), 8, 0, False) == entry_name(Counting(), chat, 8, 0, False)


def test_the_tokenizer_hash_does_not_depend_on_how_it_was_used():
    used = copy.deepcopy(byte_level())
    used.pad_token = "</s>"
    fresh = copy.deepcopy(used)
    used(["a", "bcd"], padding=True, truncation=True, max_length=2)
    assert tokenizer_hash(used) == tokenizer_hash(fresh)
    assert tokenizer_hash(bpe()) != tokenizer_hash(byte_level())
    assert tokenizer_hash(None) == "none"


@pytest.mark.parametrize("damage", ["cut", "empty", "flip", "other"])
def test_a_damaged_file_is_built_again(damage):
    task = Counting()
    built = build_cached(task, bpe(), 8, 50)
    (file,) = entries()[0].iterdir()
    content = bytearray(file.read_bytes())
    if damage == "flip":
        for at in range(0, len(content), 7):
            changed = bytearray(content)
            changed[at] ^= 0x55
            file.write_bytes(changed)
            assert read_segment(file) is None
        content[len(content) // 3] ^= 0x55
    damaged = {"cut": content[:-30], "empty": b"", "flip": content, "other": b"something else entirely"}[damage]
    file.write_bytes(damaged)
    assert build_cached(task, bpe(), 8, 50) == built
    assert task.asked == [(0, 50), (0, 50)]
    assert read_segment(file) == built


def test_a_damaged_file_does_not_come_back_when_fewer_are_asked_for():
    task = Counting()
    build_cached(task, bpe(), 8, 50)
    (file,) = entries()[0].iterdir()
    file.write_bytes(b"")
    for _ in range(2):
        build_cached(task, bpe(), 8, 10)
    assert task.asked == [(0, 50), (0, 10)]


def test_an_unfinished_file_is_no_entry():
    task = Counting()
    build_cached(task, bpe(), 8, 5)
    (file,) = entries()[0].iterdir()
    file.rename(file.with_name("0-5.123.part"))
    build_cached(task, bpe(), 8, 5)
    assert task.asked == [(0, 5), (0, 5)]


def test_the_least_recently_used_go_first(monkeypatch):
    task = Counting()
    monkeypatch.setenv("LONGEVAL_CACHE_GB", "0.000006")  # 6 kB, about three of these entries
    for seed in range(3):
        build_cached(task, bpe(), 8, 20, seed)
    for age, entry in enumerate(entries()):
        os.utime(entry, (1000 + age, 1000 + age))
    oldest, second, _ = entries()
    build_cached(task, bpe(), 8, 20, int(_seed_of(oldest)))  # used again
    build_cached(task, bpe(), 8, 20, 99)
    assert oldest.exists()
    assert not second.exists()
    assert sum(file.stat().st_size for entry in entries() for file in entry.iterdir()) <= 6000


def _seed_of(entry):
    (file,) = entry.iterdir()
    return read_segment(file)[0].id.split("/")[-2]


def test_a_limit_of_nothing_keeps_only_what_was_just_built(monkeypatch):
    monkeypatch.setenv("LONGEVAL_CACHE_GB", "0")
    for seed in range(3):
        build_cached(Counting(), bpe(), 8, 4, seed)
        assert len(entries()) == 1


@pytest.mark.parametrize("limit", ["ten", "-1", "nan"])
def test_a_limit_that_is_no_size(monkeypatch, limit):
    monkeypatch.setenv("LONGEVAL_CACHE_GB", limit)
    with pytest.raises(UserError, match="number of gigabytes"):
        build_cached(Counting(), bpe(), 8, 4)


def test_a_cache_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LONGEVAL_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="set LONGEVAL_CACHE to another folder"):
        build_cached(Counting(), bpe(), 8, 4)


def test_meta_must_be_plain_json(tmp_path):
    sample = Counting().build(bpe(), 8, 1)[0]
    with pytest.raises(TypeError, match="plain JSON"):
        write_segment(tmp_path / "0-1.samples", [replace(sample, meta={"tuple": (1, 2)})])


def test_no_samples_are_a_segment_too(tmp_path):
    write_segment(tmp_path / "0-1.samples", [])
    assert read_segment(tmp_path / "0-1.samples") == []


@pytest.mark.parametrize("name", ["niah_multiquery", "cwe", "vt", "fwe", "qa_2"])
def test_ruler_through_the_cache(tmp_path, name):
    write_corpora(tmp_path)
    task = get_task(f"ruler/{name}", TaskOptions(data_dir=tmp_path))
    built = task.build(bpe(), 6000, 4)
    assert build_cached(task, bpe(), 6000, 2) == built[:2]
    assert build_cached(task, bpe(), 6000, 4) == built

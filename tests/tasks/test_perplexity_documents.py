"""Readers of the corpora: order, joining, deduplication, and one clear line for bad data."""

import gzip
import json
import sqlite3
import sysconfig
from pathlib import Path

import pytest

from longeval.errors import UserError
from longeval.tasks.perplexity import documents, hub


def jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(found):
    """Documents are read before the next one is asked for, as the task does."""
    return [(document.name, list(document.parts)) for document in found]


def test_text_folder_in_path_order(tmp_path):
    (tmp_path / "b.txt").write_bytes(b"second\r\nline\n")
    (tmp_path / "a").mkdir()
    jsonl(tmp_path / "a" / "rows.jsonl", [{"text": "one"}, {"text": "two", "id": "T"}])
    (tmp_path / "notes.md").write_text("not a document")
    rows = tmp_path / "a" / "rows.jsonl"
    assert read(documents.text_documents(tmp_path)) == [
        (f"{rows} line 1", ["one"]),
        ("T", ["two"]),
        ("b.txt", ["second\r\nline\n"]),
    ]
    assert [name for name, _ in read(documents.text_documents(tmp_path / "b.txt"))] == ["b.txt"]


def test_narrativeqa_rows_repeat_stories(tmp_path):
    path = jsonl(tmp_path / "s.jsonl", [{"id": "x", "text": "X"}, {"id": "y", "text": "Y"}, {"id": "x", "text": "X"}])
    assert read(documents.text_documents(path, unique_ids=True)) == [("x", ["X"]), ("y", ["Y"])]
    assert len(read(documents.text_documents(path))) == 3
    jsonl(path, [{"text": "X"}, {"text": "X"}, {"id": 7, "text": "Y"}])
    assert [name for name, _ in read(documents.text_documents(path, unique_ids=True))] == [
        f"{path} line 1",
        f"{path} line 2",
        "7",
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "unfinished', "line 2: not valid JSON"),
        (b"[1]", "line 2: must be a JSON object"),
        (b'{"txt": "x"}', "line 2: the row lacks the field 'text'"),
        (b'{"text": 3}', "line 2: the field 'text' must be str"),
        (b'{"text": " \\n"}', "line 2: empty document"),
        (b'{"text": "\\ud800"}', "line 2: unpaired surrogate"),
        (b'{"text": "\xff"}', "line 2: not UTF-8"),
    ],
)
@pytest.mark.parametrize("reader", [documents.text_documents, documents.code_documents])
def test_bad_rows_name_file_and_line(tmp_path, reader, line, message):
    (tmp_path / "d.jsonl").write_bytes(b'{"text": "good"}\n' + line + b"\n")
    with pytest.raises(UserError) as error:
        read(reader(tmp_path))
    assert f"d.jsonl {message}" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("content", "message"), [(b"", "empty document"), (b"\n ", "empty"), (b"\xe9", "not UTF-8")])
def test_bad_text_files(tmp_path, content, message):
    (tmp_path / "d.txt").write_bytes(content)
    with pytest.raises(UserError, match=message):
        read(documents.text_documents(tmp_path))


def test_folders_without_documents(tmp_path):
    with pytest.raises(UserError, match=r"no \.txt or \.jsonl file"):
        read(documents.text_documents(tmp_path))
    (tmp_path / "data.csv").write_text("x")
    with pytest.raises(UserError, match=r"no \.txt or \.jsonl file"):
        read(documents.text_documents(tmp_path / "data.csv"))


def code(repository, path, text):
    return {"repo_name": repository, "path": path, "text": text}


def test_files_of_a_repository_in_path_order(tmp_path):
    rows = [code("b", "z.py", "bz"), code("a", "x.py", "ax"), code("b", "a.py", "bé\n"), code("a", "y.py", "ay")]
    jsonl(tmp_path / "1.jsonl", rows)
    jsonl(tmp_path / "2.jsonl", [code("b", "c.py", "bc")])
    assert documents.has_repositories(tmp_path)
    assert read(documents.code_documents(tmp_path)) == [("b", ["bé\n", "bc", "bz"]), ("a", ["ax", "ay"])]
    for document in documents.code_documents(tmp_path):
        parts = list(document.parts)
        assert document.most_tokens >= sum(len(part.encode()) + 2 for part in parts)


def test_without_repositories_files_are_joined_in_dataset_order(tmp_path):
    jsonl(tmp_path / "d.jsonl", [{"text": text} for text in "abcde"])
    assert not documents.has_repositories(tmp_path)
    found = documents.code_documents(tmp_path)
    first = iter(next(found).parts)
    assert [next(first), next(first)] == ["a", "b"]
    second = iter(next(found).parts)
    assert list(second) == ["c", "d", "e"]
    assert next(found, None) is None


def test_rows_with_and_without_repositories_do_not_mix(tmp_path):
    path = jsonl(tmp_path / "d.jsonl", [code("a", "x.py", "ax"), {"text": "y"}])
    with pytest.raises(UserError, match="line 2: the row lacks the field 'repo_name'"):
        read(documents.code_documents(path))


def test_stdlib_documents_are_packages_and_modules():
    root = Path(sysconfig.get_path("stdlib"))
    found = {document.name: document for document in documents.stdlib_documents()}
    files = sorted((root / "json").glob("*.py"))
    assert list(found["json"].parts) == [file.read_text() for file in files if file.stat().st_size]
    assert list(found["textwrap.py"].parts) == [(root / "textwrap.py").read_text()]
    assert list(found) == sorted(found)
    assert not {"site-packages", "test", "pydoc_data"} & set(found)


def bible(path, books=66):
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE Books(TestamentID INT, BookID INT, ShortName TEXT, LongName TEXT)")
    database.execute("CREATE TABLE Bible(TestamentID INT, BookID INT, Passage1 TEXT, Passage2 TEXT)")
    for book in reversed(range(books)):
        place = (1, book + 1) if book < 39 else (2, book - 38)
        database.execute("INSERT INTO Books VALUES (?, ?, '', ?)", (*place, f"Book {book + 1}"))
        for verse, more in (("1:1 first.", ""), ("1:2 second.", "Selah.")):
            database.execute("INSERT INTO Bible VALUES (?, ?, ?, ?)", (*place, verse, more))
    database.commit()
    database.close()


def test_sections_of_the_bible(tmp_path):
    bible(tmp_path / "Bible #1.db")
    found = read(documents.kjv_documents(tmp_path / "Bible #1.db"))
    assert [name for name, _ in found] == [
        "Law",
        "History",
        "Poetry",
        "Major Prophets",
        "Minor Prophets",
        "Gospels and Acts",
        "Epistles",
        "Revelation",
    ]
    assert found[-1][1] == ["Book 66\n\n1:1 first.\n\n1:2 second.\n\nSelah."]
    first_lines = [part.split("\n")[0] for _, (text,) in found for part in text.split("\n\n\n")]
    assert first_lines == [f"Book {number}" for number in range(1, 67)]


def test_a_broken_bible(tmp_path):
    (tmp_path / "Bible.db").write_text("no database")
    with pytest.raises(UserError, match="not the Bible database"):
        read(documents.kjv_documents(tmp_path / "Bible.db"))
    sqlite3.connect(tmp_path / "empty.db").close()
    with pytest.raises(UserError, match="not the Bible database"):
        read(documents.kjv_documents(tmp_path / "empty.db"))


# ---- from the hub: the real loading code on folders laid out as the hub's repositories


@pytest.fixture
def hub_folder(tmp_path, monkeypatch):
    """A folder in which `datasets` finds `owner/name` locally, and its cache."""
    import datasets

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("longeval.tasks.corpora.hub_answers", lambda: False)
    datasets.disable_progress_bars()
    return tmp_path


def parquet(path, rows):
    import pyarrow
    from pyarrow.parquet import write_table

    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(pyarrow.Table.from_pylist(rows), path)


def test_pg19_from_the_hub(hub_folder):
    data = hub_folder / "emozilla" / "pg19-test" / "data"
    parquet(data / "test-00000-of-00001-29a5.parquet", [{"short_book_title": "T", "text": "Once\n“é”"}])
    path = hub.PG19.require()
    assert read(documents.text_documents(path)) == [("T", ["Once\n“é”"])]
    assert hub.PG19.locate() == path


def test_pg19_from_the_hub_clients_cache(hub_folder, monkeypatch):
    """What was downloaded before is found without the hub."""
    repository = hub_folder / "cache" / "datasets--emozilla--pg19-test"
    parquet(
        repository / "snapshots" / "1a2b" / "data" / "test-0-29a5.parquet", [{"short_book_title": "T", "text": "x"}]
    )
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("1a2b")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub_folder / "cache"))
    assert read(documents.text_documents(hub.PG19.require())) == [("T", ["x"])]


def test_narrativeqa_from_the_hub(hub_folder):
    def row(story, question):
        return {"document": {"id": story, "text": f"story {story}", "summary": {"text": "no"}}, "question": question}

    data = hub_folder / "deepmind" / "narrativeqa" / "data"
    parquet(data / "test-00000-of-00002.parquet", [row("x", "1"), row("x", "2")])
    parquet(data / "test-00001-of-00002.parquet", [row("x", "3"), row("y", "4")])
    parquet(data / "train-00000-of-00001.parquet", [row("train", "5")])
    found = read(documents.text_documents(hub.NARRATIVEQA.require(), unique_ids=True))
    assert found == [("x", ["story x"]), ("y", ["story y"])]


def test_codeparrot_from_the_hub(hub_folder):
    folder = hub_folder / "codeparrot" / "codeparrot-clean-valid"
    folder.mkdir(parents=True)
    rows = [("b/b", "z.py", "bz"), ("a/a", "x.py", "ax"), ("b/b", "y.py", "by"), ("b/b", "__init__.py", "")]
    with gzip.open(folder / "file-000000000054.json.gz", "wt") as file:
        for repository, path, content in rows:
            file.write(json.dumps({"repo_name": repository, "path": path, "content": content, "size": "2"}) + "\n")
    found = read(documents.code_documents(hub.CODEPARROT.require()))
    assert found == [("b/b", ["by", "bz"]), ("a/a", ["ax"])]


def test_a_missing_corpus_says_what_to_do(hub_folder):
    with pytest.raises(UserError, match="put pg19 into --data-dir, or go online for emozilla/pg19-test") as error:
        hub.PG19.require()
    assert "\n" not in str(error.value)
    assert not list(hub_folder.glob("**/documents.jsonl"))

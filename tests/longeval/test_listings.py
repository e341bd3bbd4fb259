"""What `longeval tasks` and `longeval data` list."""

import pytest

from longeval.tasks import SUITES, get_suite
from longeval.tasks.corpora import all_corpora


@pytest.fixture
def listing(longeval, monkeypatch):
    """The lines that a command prints in a terminal of 80 columns, on a machine without a hub."""
    for module in ("corpora", "babilong.hub", "babilong.source"):
        monkeypatch.setattr(f"longeval.tasks.{module}.hub_answers", lambda: False)
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments):
        status, shown, _ = longeval(*arguments)
        assert status == 0
        lines = shown.splitlines()
        assert max(map(len, lines)) <= 80
        return lines

    return call


def test_every_task_has_a_line_and_its_data_is_told_once(listing):
    lines = listing("tasks")
    rows = [line.split() for line in lines]
    for suite in SUITES:
        for short in get_suite(suite).tasks:
            assert sum(row[:1] == [short] and len(row) > 4 for row in rows) == 1
    assert ["lookup", "2k…8k", "96", "accuracy", "yes"] in rows
    assert ["qa1", "0k…64k", "100", "accuracy", "no"] in rows
    assert ["lcc", "0–4k…8k+", "300", "code_sim_score", "no"] in rows  # there is no hub
    assert "from the hub" not in " ".join(lines)
    assert " ".join(lines).count("put the folder en-10k") == 1
    assert not any("…" in row[0] for row in rows if row)


def test_data_at_hand(listing, tmp_path):
    (tmp_path / "qasper_e.jsonl").write_text("{}\n")
    lines = listing("tasks", "--data-dir", tmp_path)
    assert ["qasper", "0–4k…8k+", "300", "qa_f1_score", "yes"] in [line.split() for line in lines]
    found = " ".join(listing("data", "--data-dir", tmp_path)).split()
    assert "".join(found).count(f"found:{tmp_path},hash") == 1


def test_every_corpus_says_where_it_is_and_what_its_licence_is(listing):
    text = " ".join(" ".join(listing("data")).split())
    for corpus in all_corpora():
        assert f"{corpus.name} {corpus.title}" in text
        assert f"licence: {corpus.licence}" in text
    assert text.count("found: ") + text.count("not here: ") == len(all_corpora())

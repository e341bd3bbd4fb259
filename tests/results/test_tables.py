"""What a reader of a table sees, at 80 and 160 columns."""

import io

import pytest
from builders import manifest, rows, task
from rich.console import Console

from longeval.results.aggregate import aggregate
from longeval.results.tables import run_tables

SIX = (4096, 8192, 16384, 32768, 65536, 131072)


def render(renderable, width):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(renderable)
    return console.export_text()


def shown(plan, data, width=100):
    return render(run_tables(plan, aggregate(plan, data)), width)


@pytest.mark.parametrize("width", [80, 160])
def test_six_lengths_fit(width):
    tasks = [task(f"s/niah_multiquery_{i}") for i in range(3)]
    plan = manifest(tasks, lengths=SIX, planned=2)
    data = [row for t in tasks for length in SIX for row in rows(t["name"], [1.0, 0.98], length)]
    text = shown(plan, data, width)
    assert text.count("99.0±1.0") == 18
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text


def test_a_column_too_wide_for_the_terminal_loses_no_digit():
    text = shown(manifest([task("s/niah_multiquery")]), rows("s/niah_multiquery", [1.0, 0.98, 1.0, 1.0]), 20)
    assert "…" not in text
    assert "".join(line[-5:].strip() for line in text.splitlines()[3:6]).startswith("99.5±0.5")


def test_marks():
    plan = manifest([task("s/a"), task("s/b")], lengths=(4096, 8192), planned=4, unfit={("s/b", 4096)}, trained=4096)
    data = rows("s/a", [1.0, None]) + rows("s/a", [1.0] * 4, 8192, truncated=True) + rows("s/b", [0.0] * 4, 8192)
    text = shown(plan, data)
    assert "n=2/4 e1" in text
    assert "100.0±0.0 t4" in text
    assert "does not fit" in text
    assert "smallest size: b 5,000" in text
    assert "8k*" in text
    assert "4k*" not in text
    assert "beyond the trained window of 4,096 tokens" in text
    assert "failed, scored 0 (e): 1" in text
    assert "truncated (t): 4" in text


def test_partial_suite_is_labelled():
    three = [task("s/a"), task("s/b"), task("s/c")]
    text = shown(manifest(three[:2], all_tasks=three), rows("s/a", [1.0] * 4) + rows("s/b", [1.0] * 4))
    assert "partial suite: 2/3 tasks" in text
    assert "100.0±0.0 2/3" in text


def test_an_average_over_one_task_has_no_row():
    text = shown(manifest([task("s/a")], all_tasks=[task("s/a"), task("s/b")]), rows("s/a", [1.0] * 4))
    assert "partial suite: 1/2 tasks" in text
    assert "average" not in text
    tasks = [task("s/a", "x"), task("s/b", "x"), task("s/c", "alone")]
    text = shown(manifest(tasks), [row for t in tasks for row in rows(t["name"], [1.0] * 4)])
    assert [line.split()[0] for line in text.splitlines()[3:10] if line.strip()] == ["a", "b", "c", "x", "average"]


def test_one_sample_shows_no_error_bar_and_a_loss_is_not_a_percentage():
    text = shown(manifest([task("s/a")], planned=1), rows("s/a", [1.0]))
    assert "100.0" in text
    assert "100.0±" not in text
    assert "2.500" in shown(manifest([task("s/a", percent=False)], planned=1), rows("s/a", [2.5]))


def test_empty_run():
    assert "– n=0/4" in shown(manifest([task("s/a")]), [])


def test_scores_beside_the_headline_have_rows_of_their_own():
    text = shown(manifest([{**task("s/a"), "beside": ["substring"]}]), rows("s/a", [0.0] * 4))
    assert "a substring" in text
    assert "100.0" in text

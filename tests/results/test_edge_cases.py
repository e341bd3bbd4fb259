"""Runs that went wrong or hardly began: every table, file and page is still right, and says so."""

import csv
import io
import json
import math
import re
from dataclasses import replace

import pytest
from rich.console import Console
from run_folders import build_run

from longeval.errors import UserError
from longeval.results.compare import compare
from longeval.results.leaderboard import leaderboard, problems
from longeval.results.ranking import ranking_grids
from longeval.results.report import html_report
from longeval.results.runs import load_runs
from longeval.results.side_by_side import comparison_grids
from longeval.results.store import RunFolder
from longeval.results.text_files import as_csv, as_latex, as_markdown
from longeval.results.view import comparison_view, run_view

TASKS = ("niah_single_1", "vt")


def terminal(renderable):
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(renderable)
    return console.export_text()


class Everything:
    """All that can be made of runs: terminal, files and page."""

    def __init__(self, *paths):
        self.runs = load_runs(paths)
        comparison = compare(paths)
        grids = comparison_grids(comparison)
        self.shown = "".join(terminal(run_view(run.folder, run.scores, 160)) for run in self.runs)
        self.compared = terminal(comparison_view(comparison, 160))
        self.markdown, self.latex, self.html = as_markdown(grids), as_latex(grids), html_report(comparison)
        self.rows = list(csv.DictReader(io.StringIO(as_csv(grids))))
        self.board = json.loads(json.dumps(leaderboard(self.runs, allow_partial=True), allow_nan=False))
        self.ranked = "".join(terminal(grid) for grid in ranking_grids(self.board))
        assert list(problems(self.board)) == []

    @property
    def texts(self):
        """Everything that a person reads, the page without its scripts."""
        page = re.sub(r"<script.*?</script>", "", self.html, flags=re.DOTALL)
        return [self.shown, self.compared, self.markdown, self.latex, self.ranked, page]

    def cell(self, task, length):
        (row,) = [row for row in self.rows if (row["name"], row["length"]) == (task, str(length))]
        return row

    def data(self, name):
        """What the page's script gets."""
        return json.loads(
            re.search(rf'<script id="{name}" type="application/json">(.*?)</script>', self.html, re.DOTALL)[1]
        )


def assert_no_nonsense(texts):
    for text in texts:
        assert not re.search(r"\b(nan|inf|None|NaN|Infinity)\b", text), re.search(
            r".{40}\b(nan|inf|None|NaN)\b.{20}", text
        )


def test_failed_samples(tmp_path):
    def change(row):
        failed = "/vt/2048/" in row.id and row.id.endswith(("/0", "/1", "/2"))
        return replace(row, score=None, scores={}, prediction=None, error="OutOfMemoryError: 80 GiB") if failed else row

    build_run(tmp_path / "run", tasks=TASKS, n=10, skill=2.0, change=change)
    made = Everything(tmp_path / "run")
    assert made.cell("vt", 2048)["errors"] == "3"
    assert float(made.cell("vt", 2048)["score"]) == 70.0
    for text in (made.shown, made.compared, made.markdown):
        assert "e3" in text
        assert "failed, scored 0 (e): 3" in text
    assert_no_nonsense(made.texts)
    assert "tiny: failed samples, scored 0: 3" in made.ranked
    failed = [row for row in made.data("sample-data")["rows"] if row[8]]
    assert [(row[4], row[8]) for row in failed] == [(None, "OutOfMemoryError: 80 GiB")] * 3
    assert not made.runs[0].scores.complete


def test_partial_suite(tmp_path):
    build_run(tmp_path / "run", tasks=TASKS, n=4)
    with pytest.raises(UserError, match="ruler is partial: 2/13 tasks"):
        leaderboard(load_runs([tmp_path / "run"]))
    made = Everything(tmp_path / "run")
    for text in (made.shown, made.compared, made.markdown, made.html):
        assert "partial suite: 2/13 tasks" in text
        assert "2/13" in text
    assert "ruler is partial: 2/13 tasks" in made.ranked
    assert "not ranked" in made.ranked
    assert_no_nonsense(made.texts)


def test_empty_cell_and_empty_run(tmp_path):
    build_run(tmp_path / "run", tasks=TASKS, n=4, change=lambda row: None if "/vt/4096/" in row.id else row)
    made = Everything(tmp_path / "run")
    assert (made.cell("vt", 4096)["n"], made.cell("vt", 4096)["score"]) == ("0", "")
    assert "– n=0/4" in made.shown
    assert made.board["entries"][0]["partial"][1] == "ruler is unfinished: fewer samples than planned in 1 of 6 cells"
    assert_no_nonsense(made.texts)
    build_run(tmp_path / "empty", "empty", tasks=TASKS, n=4, change=lambda row: None)
    nothing = Everything(tmp_path / "empty")
    assert "0 samples" in nothing.html
    assert nothing.data("chart-data") == {}
    assert_no_nonsense(nothing.texts)
    both = Everything(tmp_path / "run", tmp_path / "empty")
    assert both.rows[0]["p"] == ""
    assert_no_nonsense(both.texts)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_score_that_is_no_number(tmp_path, value):
    def change(row):
        return replace(row, score=value, scores={"x": value}) if row.id.endswith("niah_single_1/2048/0/0") else row

    build_run(tmp_path / "run", tasks=TASKS, n=10, skill=2.0, change=change)
    made = Everything(tmp_path / "run")
    cell = made.cell("niah_single_1", 2048)
    assert (cell["errors"], float(cell["score"])) == ("1", 90.0)
    json.loads((tmp_path / "run" / "scores.json").read_text(), parse_constant=pytest.fail)
    assert_no_nonsense(made.texts)
    assert "the score is not a number" in made.html


def test_a_loss_that_is_no_number(tmp_path):
    def change(row):
        return replace(row, score=math.nan, scores={"nll": math.nan}) if row.id.endswith("/1") else row

    build_run(tmp_path / "run", suite="perplexity", tasks=["stdlib"], lengths=(256,), n=5, change=change)
    made = Everything(tmp_path / "run")
    assert (made.cell("stdlib", 256)["errors"], made.cell("stdlib", 256)["n"]) == ("1", "5")
    assert "failed, left out of the mean (e): 1" in made.compared
    assert_no_nonsense(made.texts)


def test_a_single_sample(tmp_path):
    for name, skill in (("one", 2.0), ("two", 0.0)):
        build_run(tmp_path / name, name, tasks=TASKS, n=1, skill=skill, slope=0)
    alone = Everything(tmp_path / "one")
    cell = alone.cell("vt", 2048)
    assert (cell["score"], cell["standard_error"]) == ("100.0", "")
    assert float(cell["low"]) < 50
    assert "100.0±" not in alone.shown
    assert_no_nonsense(alone.texts)
    both = Everything(tmp_path / "one", tmp_path / "two")
    assert "▼" not in both.compared.partition("▲ better")[0]
    assert_no_nonsense(both.texts)


def test_a_single_document(tmp_path):
    build_run(tmp_path / "run", suite="perplexity", tasks=["stdlib"], lengths=(256,), n=1)
    made = Everything(tmp_path / "run")
    assert (made.cell("stdlib", 256)["standard_error"], made.cell("stdlib", 256)["low"]) == ("", "")
    assert_no_nonsense(made.texts)


def test_what_does_not_fit(tmp_path):
    build_run(tmp_path / "run", tasks=TASKS, n=4, unfit={("vt", 1024)})
    made = Everything(tmp_path / "run")
    for text in (made.shown, made.compared, made.markdown, made.latex, made.html):
        assert "does not fit" in text
    assert "1/13" in made.compared
    assert_no_nonsense(made.texts)


def test_truncated_and_empty_predictions_are_counted(tmp_path):
    build_run(tmp_path / "run", tasks=TASKS, n=4, change=lambda row: replace(row, prediction=" \n", truncated=True))
    made = Everything(tmp_path / "run")
    assert made.cell("vt", 1024)["empty"] == made.cell("vt", 1024)["truncated"] == "4"
    assert "truncated (t): 24" in made.compared
    assert "empty predictions: 24" in made.compared


def test_text_that_could_break_the_page(tmp_path):
    evil = '</script><script>alert(1)</script><!-- {{samples}} \u2028 " \\ \x00'
    build_run(
        tmp_path / "run", '<b>&"', tasks=TASKS, n=2, change=lambda row: replace(row, prediction=evil, prompt_tail=evil)
    )
    made = Everything(tmp_path / "run")
    assert "<script>alert" not in made.html
    assert made.data("sample-data")["rows"][0][6] == evil
    assert "&lt;b&gt;&amp;&quot;" in made.html
    assert '<b>&"' not in made.html


def test_an_old_run_folder_can_be_rebuilt(tmp_path):
    from longeval.results.aggregate import rebuild_scores

    build_run(tmp_path / "run", tasks=TASKS, n=4)
    before = (tmp_path / "run" / "scores.json").read_bytes()
    (tmp_path / "run" / "scores.json").unlink()
    rebuild_scores(RunFolder(tmp_path / "run"))
    assert (tmp_path / "run" / "scores.json").read_bytes() == before

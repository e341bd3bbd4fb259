"""CSV, Markdown and LaTeX say what the terminal says."""

import csv
import io
import re
import shutil
import subprocess

import pytest
from run_folders import build_run

from longeval.results.compare import compare
from longeval.results.grid import Entry, Grid, Line
from longeval.results.published import load_published
from longeval.results.side_by_side import comparison_grids
from longeval.results.text_files import as_csv, as_latex, as_markdown


@pytest.fixture(scope="module")
def grids(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name, skill in (("rope", 0.5), ("path_fox", 0.9)):
        build_run(folder / name, name, tasks=("niah_single_1", "vt"), lengths=(1024, 4096), n=20, skill=skill)
    return comparison_grids(compare([folder / "rope", folder / "path_fox"], published=[load_published("path-paper")]))


def numbers(grid):
    return [entry.text for line in grid.lines for entry in line.entries if entry.record]


def test_csv_has_every_number_unrounded(grids):
    rows = list(csv.DictReader(io.StringIO(as_csv(grids))))
    assert [f"{float(row['score']):.1f}" for row in rows] == [text for grid in grids for text in numbers(grid)]
    tested = [row for row in rows if row["p"]]
    assert {(row["run"], row["baseline"]) for row in tested} == {("path_fox", "rope")}
    assert len(tested) == 6
    assert all(row["kind"] == "published" for row in rows if "published" in row["run"])
    cell = rows[0]
    assert (cell["n"], cell["planned"], cell["errors"], cell["length"], cell["label"]) == (
        "20",
        "20",
        "0",
        "1024",
        "1k",
    )
    assert float(cell["low"]) < float(cell["score"]) < float(cell["high"])


def test_markdown(grids):
    text = as_markdown(grids)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") - line.count("\\|") for line in lines}) == 1
    assert [n for line in lines for n in re.findall(r"(?:^|[ *])(\d+\.\d)(?=[ *|])", line)] == numbers(grids[0])
    assert "**" in text
    assert "path\\_fox" in text


def test_special_characters_are_escaped():
    grid = Grid(
        "a|b_c & 50%", ("t",), ["<x>"], [[Line(("$y$ {z} #1 ~^\\",), [Entry("1.0±0.5", best=True)])]], ["n × 2"]
    )
    assert "## a\\|b\\_c & 50%" in as_markdown([grid])
    latex = as_latex([grid])
    assert r"\caption{a|b\_c \& 50\%}" in latex
    assert r"{\footnotesize n $\times$ 2}" in latex
    assert r"\$y\$ \{z\} \#1 \textasciitilde{}\textasciicircum{}\textbackslash{}" in latex
    assert r"\textbf{1.0$\pm$0.5}" in latex


def test_latex(grids):
    text = as_latex(grids)
    rows = [line for line in text.splitlines() if line.endswith(r"\\") and "&" in line]
    assert len({len(re.findall(r"(?<!\\)&", row)) for row in rows}) == 1
    assert re.findall(r"\d+\.\d(?= |}| \\\\)", "".join(rows))
    assert r"$\blacktriangle$" in text
    assert "±" not in text
    assert "–" not in text


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex here: the LaTeX is not compiled")
def test_latex_compiles(grids, tmp_path):
    preamble = "\\documentclass{article}\\usepackage{booktabs,amssymb}\\begin{document}\n"
    (tmp_path / "t.tex").write_text(preamble + as_latex(grids) + "\\end{document}\n")
    subprocess.run(["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"], cwd=tmp_path, check=True)

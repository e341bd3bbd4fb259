"""compare, export and leaderboard as a person types them."""

import csv
import io
import json

import pytest
from run_folders import build_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name, skill in (("rope", 0.4), ("path-fox", 0.8)):
        build_run(folder / name, name, lengths=(2048, 4096), n=4, skill=skill)
    build_run(folder / "part", "part", tasks=("vt",), lengths=(2048,), n=2)
    return folder


@pytest.fixture
def longeval(folder, longeval, monkeypatch):
    """Runs a command in the folder of runs; gives status, output and errors."""
    monkeypatch.chdir(folder)
    return longeval


def test_compare(longeval):
    status, out, err = longeval("compare", "rope", "path-fox", "--with", "path-paper", "--detect", "3")
    assert status == 0
    assert "rope (baseline)" in out
    assert "PaTH-FoX (published)" in out
    assert "3 would need" in out.replace("\n", " ")
    assert err == ""


def test_compare_warns_with_the_keys(longeval):
    _, _, err = longeval("compare", "rope", "part")
    assert err.startswith("warning: not the same in all runs: lengths of ruler/vt (rope: [2048, 4096], part: [2048])")


@pytest.mark.parametrize("format", ["csv", "markdown", "latex", "html", "leaderboard"])
def test_export(longeval, folder, format):
    status, out, _ = longeval("export", "rope", "path-fox", "--format", format)
    assert status == 0
    status, shown, err = longeval("export", "rope", "path-fox", "--format", format, "--out", f"out.{format}")
    assert (status, shown, err) == (0, "", f"wrote out.{format}\n")
    assert (folder / f"out.{format}").read_text() == out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export", "rope", "--format", "cvs"], "--format 'cvs' is not known; did you mean csv?"),
        (["export", "rope"], "Missing option '--format'"),
        (["export", "rope", "--format", "csv", "--out", "no/such/x"], "cannot write to no/such/x (No such file"),
        (["export", "part", "--format", "leaderboard"], "part: ruler is partial: 1/13 tasks; finish the run, or use"),
        (["compare", "rope", "nothing"], "nothing is not a run folder"),
        (["compare", "rope", "rope"], "rope is given twice"),
        (["leaderboard", "merge", "rope/manifest.json"], "is no leaderboard file"),
        (["leaderboard", "merge", "x.json", "--format", "tex"], "--format 'tex' is not known; did you mean latex?"),
        (["export", "rope", "--format", "mlflow"], "mlflow is not installed"),
    ],
)
def test_bad_input_is_one_line(longeval, monkeypatch, arguments, message):
    monkeypatch.setitem(__import__("sys").modules, "mlflow", None)
    status, out, err = longeval(*arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_leaderboard(longeval, folder):
    longeval("export", "rope", "--format", "leaderboard", "--out", "rope.json")
    longeval("export", "path-fox", "part", "--format", "leaderboard", "--allow-partial", "--out", "more.json")
    assert longeval("leaderboard", "validate", "rope.json", "more.json")[:2] == (
        0,
        "rope.json: valid\nmore.json: valid\n",
    )
    status, out, err = longeval("leaderboard", "validate", "no.json", "rope.json")
    assert (status, out) == (2, "rope.json: valid\n")
    assert "cannot read no.json" in err
    status, out, _ = longeval("leaderboard", "merge", "rope.json", "more.json", "--out", "all.json")
    assert status == 0
    assert [line.split()[:2] for line in out.splitlines() if line[:1] in ("1", "2", "–")] == [
        ["1", "path-fox"],
        ["2", "rope"],
        ["–", "part"],
    ]
    assert [entry["model"]["name"] for entry in json.loads((folder / "all.json").read_text())["entries"]] == [
        "rope",
        "path-fox",
        "part",
    ]
    assert longeval("leaderboard", "validate", "all.json")[0] == 0
    table = list(csv.DictReader(io.StringIO(longeval("leaderboard", "merge", "all.json", "--format", "csv")[1])))
    (best,) = [row for row in table if (row["run"], row["label"]) == ("path-fox", "mean")]
    assert f" {float(best['score']):.1f} {float(best['low']):.0f}" in out
    assert len(table) == 2 * 3 + 1  # both whole entries at two lengths and on average, the partial one at one length
    assert longeval("leaderboard", "merge", "all.json", "--format", "markdown")[1].startswith("## RULER · average\n")
    content = json.loads((folder / "all.json").read_text())
    content["entries"][0]["suites"][0]["headline"][0]["score"] = 1.0
    (folder / "all.json").write_text(json.dumps(content))
    status, out, _ = longeval("leaderboard", "validate", "all.json")
    assert status == 1
    assert "entry 1 (rope): ruler average at 2048 is 1.0, but its cells give" in out

"""Leaderboard files: complete, checkable, mergeable; refused when partial or changed."""

import copy
import json

import pytest
from jsonschema import Draft202012Validator
from run_folders import build_run

from longeval.errors import UserError
from longeval.results.leaderboard import (
    check_file,
    leaderboard,
    mean_of,
    merge,
    problems,
    read_leaderboard,
    recompute,
    schema,
)
from longeval.results.ranking import ranking_grids
from longeval.results.runs import load_runs


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name, skill in (("rope", 0.4), ("fox", 0.6), ("path-fox", 0.8)):
        build_run(folder / name, name, n=10, skill=skill, lengths=(2048, 4096))
    return folder


def board(*paths, **more):
    return json.loads(json.dumps(leaderboard(load_runs(paths), **more), allow_nan=False))


def write(path, content):
    path.write_text(json.dumps(content))
    return path


def test_schema_is_a_schema():
    Draft202012Validator.check_schema(schema())


def test_headline_numbers_follow_exactly_from_the_file(folders):
    content = board(folders / "rope", folders / "fox", folders / "path-fox")
    assert list(problems(content)) == []
    for entry, run in zip(
        content["entries"], load_runs([folders / n for n in ("rope", "fox", "path-fox")]), strict=True
    ):
        (suite,) = entry["suites"]
        assert recompute(suite).averages == run.scores.averages
        assert [mean_of(r) for r in suite["headline"]] == [a.mean for a in run.scores.averages]
        assert [mean_of(c) for c in suite["cells"]] == [c.mean for c in run.scores.cells]
        assert (
            suite["summary"]["mean_over_lengths"]["value"] == run.scores.summaries["ruler"]["mean_over_lengths"].value
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: e["suites"][0]["headline"][0].update(score=0.99), "but its cells give"),
        (lambda e: e["suites"][0]["cells"][0].update(score=0.99), "but its cells give"),
        (lambda e: e["suites"][0]["cells"][0].update(score=1.5), "is no fraction"),
        (lambda e: e["suites"][0]["headline"].pop(), "headline numbers where its cells give"),
        (lambda e: e["suites"][0]["summary"].update(effective_length=4096), "effective_length is 4096"),
        (lambda e: e["suites"][0]["tasks"].pop(), "which its tasks do not name"),
        (lambda e: e["suites"][0]["cells"][0].update(n=3), "is unfinished"),
        (lambda e: e["suites"][0]["cells"][0].pop("n"), "'n' is a required property"),
        (lambda e: e.update(rank=1), "Additional properties are not allowed"),
        (lambda e: e["suites"][0]["headline"][0].update(score=None), "but its cells give"),
    ],
)
def test_changed_files_are_found_out(folders, tmp_path, change, message):
    content = board(folders / "rope")
    change(content["entries"][0])
    path = write(tmp_path / "board.json", content)
    assert any(message in problem for problem in check_file(path))
    with pytest.raises(UserError, match=r"board\.json"):
        merge([path])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "no leaderboard file"),
        ('{"format": "longeval-leaderboard", "version": 9}', "version 9"),
    ],
)
def test_other_files(tmp_path, content, message):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(UserError, match=message):
        read_leaderboard(tmp_path / "x.json")
    with pytest.raises(UserError, match="cannot read"):
        read_leaderboard(tmp_path / "absent.json")


def test_partial_suites_are_refused_unless_allowed(tmp_path):
    build_run(tmp_path / "part", tasks=("niah_single_1", "vt"), lengths=(2048,), n=3)
    with pytest.raises(UserError, match=r"tiny: ruler is partial: 2/13 tasks; finish the run, or use --allow-partial"):
        board(tmp_path / "part")
    content = board(tmp_path / "part", allow_partial=True)
    assert content["entries"][0]["partial"] == ["ruler is partial: 2/13 tasks"]
    assert list(problems(content)) == []
    content["entries"][0]["partial"] = []
    assert any("it says [] of what is partial" in problem for problem in problems(content))


def test_unfinished_runs_are_partial_but_a_limit_is_no_reason(tmp_path):
    build_run(tmp_path / "limited", lengths=(2048,), n=1)
    assert board(tmp_path / "limited")["entries"][0]["partial"] == []
    build_run(
        tmp_path / "cut", lengths=(2048,), n=2, change=lambda row: None if row.id.endswith("vt/2048/0/1") else row
    )
    with pytest.raises(UserError, match="ruler is unfinished: fewer samples than planned in 1 of 13 cells"):
        board(tmp_path / "cut")


def test_merge_ranks_and_drops_doubles(folders, tmp_path):
    one = write(tmp_path / "1.json", board(folders / "rope", folders / "fox"))
    two = write(tmp_path / "2.json", board(folders / "path-fox", folders / "fox"))
    content = merge([one, two])
    assert [entry["model"]["name"] for entry in content["entries"]] == ["rope", "fox", "path-fox"]
    (grid,) = ranking_grids(content)
    assert [line.labels for line in grid.lines] == [("1", "path-fox"), ("2", "fox"), ("3", "rope")]
    assert grid.columns == ["2k", "4k", "mean"]
    runs = load_runs([folders / "path-fox"])
    expected = runs[0].scores.summaries["ruler"]["mean_over_lengths"].value
    assert next(iter(grid.lines)).entries[-1].text == f"{100 * expected:.1f}"
    assert grid.notes == ["ranked by the mean over 2k, 4k · 95 % intervals"]
    assert merge([write(tmp_path / "3.json", content)]) == content


def test_ranks_use_the_lengths_that_all_have(folders, tmp_path):
    build_run(tmp_path / "long", "long", n=5, skill=0.9, lengths=(4096, 8192))
    (grid,) = ranking_grids(board(folders / "rope", tmp_path / "long"))
    assert grid.columns == ["2k", "4k", "8k", "mean"]
    assert grid.notes[0].startswith("ranked by the mean over 4k")


def test_partial_entries_have_no_rank(folders, tmp_path):
    build_run(tmp_path / "part", "part", tasks=("vt",), lengths=(2048, 4096), n=5, skill=1.0)
    (grid,) = ranking_grids(board(folders / "rope", tmp_path / "part", allow_partial=True))
    assert [line.labels for line in grid.lines] == [("1", "rope"), ("–", "part")]
    assert list(grid.lines)[1].entries[0].marks == ("1/13",)
    assert "part: ruler is partial: 1/13 tasks" in grid.notes


def test_other_protocols_are_ranked_apart(folders, tmp_path):
    build_run(tmp_path / "old", "old", n=5, lengths=(2048,), versions={"vt": "0"})
    grids = ranking_grids(board(folders / "rope", tmp_path / "old"))
    assert [grid.title for grid in grids] == [
        "RULER · average",
        "RULER · protocol 2, not comparable with the others · average",
    ]


def test_losses_rank_from_below_and_within_one_tokenizer(tmp_path):
    for name, skill, tokenizer in (("good", 0.9, "a"), ("bad", 0.1, "a"), ("other", 0.5, "b")):
        build_run(
            tmp_path / name, name, "perplexity", tasks=["stdlib"], lengths=(256,), n=4, skill=skill, tokenizer=tokenizer
        )
    content = board(*(tmp_path / name for name in ("bad", "good", "other")), allow_partial=True)
    for entry in content["entries"]:  # as if the suite had no other tasks
        (suite,) = entry["suites"]
        suite["all_tasks"], entry["partial"] = suite["tasks"], []
    grids = ranking_grids(content)
    assert [[line.labels for line in grid.lines] for grid in grids] == [[("1", "good"), ("2", "bad")], [("1", "other")]]


def test_equal_models_share_a_rank(folders):
    content = board(folders / "rope")
    twin = copy.deepcopy(content["entries"][0])
    twin["settings"]["seed"] = 5
    for cell in twin["suites"][0]["headline"]:
        cell["score"] += 1e-16  # rounding
    (grid,) = ranking_grids({**content, "entries": [content["entries"][0], twin]})
    assert [line.labels for line in grid.lines] == [("1", "rope #1"), ("1", "rope #2")]
    assert "not the same in all entries: seed (rope #1: 0, rope #2: 5)" in grid.notes

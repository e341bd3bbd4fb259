"""The run loop with a model and a suite that can be seen through."""

import fakes
import numpy as np
import pytest

import longeval.evaluate
from longeval.config import RunConfig
from longeval.errors import UserError
from longeval.results.store import RunFolder
from longeval.tasks import SUITES, TaskOptions
from longeval.types import Generation


@pytest.fixture
def evaluate(tmp_path, monkeypatch):
    """Runs the fake suite; returns the result and the prompts that the model saw."""
    monkeypatch.setitem(SUITES, "fake", "fakes")
    monkeypatch.setattr("longeval.manifest.tokenizer_hash", lambda tokenizer: "t")
    monkeypatch.setattr(
        "longeval.plan.build_cached",
        lambda task, tok, length, n, seed, chat: task.build(tok, length, n, seed, chat=chat),
    )

    def evaluate(poison=(), **config):
        model = fakes.Model(poison)
        monkeypatch.setattr("longeval.evaluate.check_model", lambda *_: model)
        monkeypatch.setattr("longeval.evaluate.load_model", lambda *_: model)
        config = {"model": "fake", "suites": ("fake",), "tasks": ("echo",), "out": tmp_path / "run", **config}
        return longeval.evaluate.run(RunConfig(**config)), model.prompts

    return evaluate


def test_every_sample_has_a_row_and_a_score(evaluate):
    result, prompts = evaluate()
    assert len(prompts) == 8
    assert result.complete
    assert [cell.mean.value for cell in result.scores.cells] == [1.0, 1.0]
    row = RunFolder(result.path).rows()["fake/echo/16/0/1"]
    assert (row.prediction, row.references, row.score, row.scores) == ("1", ["1"], 1.0, {"exact": 1.0, "shown": 1.0})
    assert (row.prompt_tokens, row.new_tokens, row.finish_reason, row.error) == (14, 1, "stop", None)
    assert row.prompt_tail == "say 1".ljust(14)


def test_a_task_may_score_the_special_tokens_too(evaluate, tmp_path, monkeypatch):
    """As PhoneBook's --strict: an end-of-text right after the answer then makes it wrong."""
    end = 3

    def generate(self, prompts, *limits):
        for index, ids in enumerate(prompts):
            answer = self.tokenizer.decode(ids).split()[1]
            yield Generation(index, (*map(ord, answer), end), answer, "stop")

    monkeypatch.setattr(fakes.Model, "generate", generate)
    result, _ = evaluate()
    assert [cell.mean.value for cell in result.scores.cells] == [1.0, 1.0]
    monkeypatch.setattr(fakes.Echo, "keep_special_tokens", True)
    result, _ = evaluate(out=tmp_path / "strict")
    assert RunFolder(result.path).rows()["fake/echo/16/0/1"].prediction == f"1{chr(end)}"
    assert [cell.mean.value for cell in result.scores.cells] == [0.0, 0.0]


def test_the_same_command_again_predicts_nothing(evaluate):
    evaluate()
    result, prompts = evaluate()
    assert prompts == []
    assert result.complete


def test_what_is_missing_is_predicted(evaluate):
    result, _ = evaluate()
    lines = (result.path / "samples.jsonl").read_text().splitlines(keepends=True)
    (result.path / "samples.jsonl").write_text("".join(lines[:5]) + lines[5][:40])
    again, prompts = evaluate()
    assert len(prompts) == 3
    assert len((again.path / "samples.jsonl").read_text().splitlines()) == 8
    assert again.scores == result.scores


def test_one_bad_sample_costs_only_itself(evaluate):
    result, _ = evaluate(poison=("say 2",))
    assert not result.complete
    assert [(cell.n, cell.errors, cell.mean.value) for cell in result.scores.cells] == [(4, 1, 0.75)] * 2
    assert RunFolder(result.path).rows()["fake/echo/16/0/2"].error == "RuntimeError: cannot do say 2"


def test_failed_samples_are_tried_again(evaluate):
    evaluate(poison=("say 2",))
    result, prompts = evaluate()
    assert [text.split()[1] for text in prompts] == ["2", "2"]
    assert result.complete


def test_losses_are_stored_before_their_rows(evaluate):
    result, _ = evaluate(tasks=("loss",), lengths=(16,), limit=1)
    folder = RunFolder(result.path)
    (row,) = folder.rows().values()
    np.testing.assert_array_equal(folder.nll(row.id), np.full(13, 2.0, np.float32))
    assert row.score == 2.0


def test_losses_that_are_gone_are_predicted_again(evaluate):
    result, _ = evaluate(tasks=("loss",), lengths=(16,), limit=1)
    (row,) = RunFolder(result.path).rows().values()
    RunFolder(result.path).nll_path(row.id).unlink()
    again, _ = evaluate(tasks=("loss",), lengths=(16,), limit=1)
    assert RunFolder(again.path).has_nll(row.id)
    assert again.scores == result.scores


def test_long_cells_may_have_fewer_samples(evaluate):
    result, prompts = evaluate(lengths=(16, 32, 64), limit=3, limit_tokens=64)
    assert [(cell.planned, cell.n) for cell in result.scores.cells] == [(3, 3), (2, 2), (1, 1)]
    assert len(prompts) == 6
    with pytest.raises(UserError, match="limit_tokens: 64 there, 10 now"):
        evaluate(lengths=(16, 32, 64), limit=3, limit_tokens=10)


def test_a_length_below_the_smallest_size(evaluate):
    result, prompts = evaluate(lengths=(8, 16), limit=1)
    assert [(cell.fits, cell.smallest) for cell in result.scores.cells] == [(False, 10), (True, None)]
    assert len(prompts) == 1
    assert result.complete


def test_nothing_fits(evaluate):
    with pytest.raises(UserError, match="fake/echo needs 10"):
        evaluate(lengths=(8,))


def test_another_configuration_in_the_same_folder(evaluate):
    evaluate(limit=1)
    with pytest.raises(UserError, match="limit: 1 there, 2 now"):
        evaluate(limit=2)


def test_over_long_prompts_are_refused_before_work(evaluate):
    with pytest.raises(UserError, match="--overflow truncate-middle"):
        evaluate(options=TaskOptions(max_length=20))


def test_over_long_prompts_are_cut_and_counted(evaluate):
    result, prompts = evaluate(options=TaskOptions(max_length=20), overflow="truncate-middle")
    assert sorted({len(text) for text in prompts}) == [14, 20]
    assert [cell.truncated for cell in result.scores.cells] == [0, 4]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"suites": ("rulr",)}, "unknown suite 'rulr'; did you mean ruler"),
        ({"lengths": (0, 16)}, "fake/echo has no length 0"),
        ({"tasks": ("ecko",)}, "did you mean echo"),
    ],
)
def test_bad_input(evaluate, config, message):
    with pytest.raises(UserError, match=message):
        evaluate(**config)


def test_scored_documents_are_never_cut(evaluate):
    with pytest.raises(UserError, match="truncate-middle cannot be used with fake/loss"):
        evaluate(tasks=("loss",), options=TaskOptions(max_length=20), overflow="truncate-middle")

"""Fitting: the largest size that fits, whatever the estimate is worth."""

import copy
import gc
import weakref

import pytest
from small_tokenizers import bpe, byte_level, joining, metaspace

from longeval.errors import UserError
from longeval.tasks import DoesNotFit, Shot
from longeval.tasks.fitting import Draft, PieceCosts, Rendered, chunks, fit, piece_costs
from longeval.tasks.prompt import Prompter


class Letters(Draft):
    """`size` letters of a prompt that has one token per letter and two more; the estimate is `per_letter` each."""

    def __init__(self, smallest, largest, per_letter):
        self.smallest, self.largest, self.per_letter = smallest, largest, per_letter
        self.tried = []

    def haystack_tokens(self, size):
        return int(size * self.per_letter)

    def render(self, size):
        self.tried.append(size)
        return Rendered("x" * size, ["y"], answer_prefix="ab")


@pytest.mark.parametrize("budget", [7, 8, 100, 101])
def test_an_exact_estimate_needs_one_proof(budget):
    draft = Letters(5, 10_000, 1)
    ((rendered, ids),) = fit(Prompter(byte_level("none"), False), [draft], budget, 3)
    assert len(rendered.prompt) == budget - 2
    assert len(ids) == budget
    assert draft.tried == ([5] if budget == 7 else [5, budget - 2])


@pytest.mark.parametrize("per_letter", [0.5, 0.9, 1.02, 1.3])
def test_a_wrong_estimate_is_corrected_and_never_exceeds(per_letter):
    draft = Letters(5, 10_000, per_letter)
    ((rendered, ids),) = fit(Prompter(byte_level("none"), False), [draft], 500, 3)
    assert len(ids) <= 500
    assert len(rendered.prompt) >= 490


def test_what_is_too_small_says_what_it_needs():
    with pytest.raises(DoesNotFit) as small:
        fit(Prompter(byte_level("none"), False), [Letters(5, 9, 1), Letters(30, 90, 1)], 20, 3)
    assert small.value.smallest == 30 + 2 + 3


def test_a_shortage_is_an_error_and_a_largest_size_is_not():
    prompter = Prompter(byte_level("none"), False)
    draft = Letters(5, 50, 1)
    ((rendered, _),) = fit(prompter, [draft], 500, 3)
    assert len(rendered.prompt) == 50
    draft.shortage = "no more letters"
    with pytest.raises(UserError, match="no more letters"):
        fit(prompter, [draft], 500, 3)


def test_no_drafts():
    assert fit(Prompter(byte_level("none"), False), [], 100, 3) == []


@pytest.mark.parametrize("make", [byte_level, bpe, metaspace])
def test_costs_add_up_to_the_whole(make):
    prompter = Prompter(make(), False)
    words = ["the", "method", "returns", "a", "new", "list", "of", "all", "the", "words", "in", "the", "text"]
    costs = piece_costs(prompter, after="a").of([f" {word}" for word in words])
    text = "a " + " ".join(words)
    assert prompter.count(["a"])[0] + costs.sum() == prompter.count([text])[0]


def test_known_pieces_are_not_counted_again(monkeypatch):
    prompter = Prompter(bpe("none"), False)
    costs = piece_costs(prompter, after="#")
    first = costs.of([" one", " two", " one"])
    monkeypatch.setattr(PieceCosts, "once", lambda self, pieces: pytest.fail(f"counted {pieces} again"))
    again = piece_costs(Prompter(prompter.tokenizer, False), after="#").of([" two", " one"])
    assert again.tolist() == [first[1], first[0]]


def test_what_is_known_of_a_tokenizer_goes_with_it():
    tokenizer = copy.deepcopy(bpe("none"))
    piece_costs(Prompter(tokenizer, False), after="#").of([" one"])
    gone = weakref.ref(tokenizer)
    del tokenizer
    gc.collect()
    assert gone() is None


def test_merges_across_pieces_do_not_break_the_length():
    """A tokenizer whose merges make every count of pieces wrong."""

    class Units(Letters):
        def render(self, size):
            return Rendered("w 1 i 0 r 1 " * size, ["y"], shots=(Shot("w 0", "i"),))

    prompter = Prompter(joining(), False)
    cost = int(piece_costs(prompter, after=" ").of(["w 1 i 0 r 1 "])[0])
    ((rendered, ids),) = fit(prompter, [Units(1, 5000, cost)], 300, 3)
    assert len(ids) <= 300
    longer = rendered.prompt + "w 1 i 0 r 1 "
    assert len(ids) == prompter.count([prompter.text(rendered.prompt, "", rendered.shots)])[0]
    assert prompter.count([prompter.text(longer, "", rendered.shots)])[0] > 290


def test_chunks_cover_the_indices():
    assert [list(chunk) for chunk in chunks(range(3, 6), 1_500_000)] == [[3], [4], [5]]
    assert list(chunks(range(0), 4096)) == []
    assert [index for chunk in chunks(range(7, 2000), 4096) for index in chunk] == list(range(7, 2000))

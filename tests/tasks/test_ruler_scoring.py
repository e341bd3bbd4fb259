"""RULER's scores: hand-computed cases, and what must hold for any text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longeval.errors import UserError
from longeval.tasks import Sample, get_suite, get_task
from longeval.tasks.ruler.scoring import clean, string_match_all, string_match_part
from longeval.types import TokenScores

texts = st.text(max_size=60)
lists = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("prediction", "references", "every", "any_"),
    [
        ("The number is 1234567.", ["1234567"], 1.0, 1.0),
        ("The number is 123456.", ["1234567"], 0.0, 0.0),
        ("1111111, 2222222 and 4444444", ["1111111", "2222222", "3333333", "4444444"], 0.75, 1.0),
        ("I read the idea", ["ad", "id", "be", "do"], 0.5, 1.0),  # substrings: "read", "idea"
        ("I do not know", ["no"], 1.0, 1.0),
        ("ABCDE XYZ", ["abcde", "xYz"], 1.0, 1.0),
        ("", ["a"], 0.0, 0.0),
        ("New\x00York", ["new york"], 0.0, 0.0),  # a control character is a newline, not a space
        ("a\tb", ["a\nb"], 1.0, 1.0),
        ("a\x1fb", ["a\nb"], 1.0, 1.0),
        ("a\x7fb", ["a\x7fb"], 1.0, 1.0),
        ("Denver  Broncos", ["Denver Broncos"], 0.0, 0.0),  # white space is compared as it is
        ("twice twice", ["twice", "twice"], 1.0, 1.0),
    ],
)
def test_hand_computed(prediction, references, every, any_):
    assert string_match_all(prediction, references) == every
    assert string_match_part(prediction, references) == any_


def test_clean_strips_before_and_after_the_control_characters():
    assert clean(" \n\x01 answer \x02 \t") == "answer"
    assert clean("a\r\nb") == "a\n\nb"


@given(texts, lists)
def test_bounds_and_agreement(prediction, references):
    every, any_ = string_match_all(prediction, references), string_match_part(prediction, references)
    assert 0.0 <= every <= any_ <= 1.0
    assert (every > 0) == (any_ == 1.0)
    assert string_match_all(prediction, references[::-1]) == every
    assert string_match_all(prediction.upper().lower(), references) == string_match_all(
        prediction.upper().lower(), [reference.lower() for reference in references]
    )


@given(st.lists(st.text("abcxyz019", min_size=1, max_size=8), min_size=1, max_size=6), texts)
def test_an_answer_that_holds_every_reference_is_right(references, noise):
    assert string_match_all(noise + " ".join(references), references) == 1.0


@pytest.mark.parametrize("references", ["1234567", [], ""])
def test_what_is_no_list_of_references_is_an_error(references):
    for rule in (string_match_all, string_match_part):
        with pytest.raises(UserError, match="list of strings"):
            rule("1234567", references)


@pytest.mark.parametrize("name", get_suite("ruler").tasks)
def test_tasks_score_by_their_rule(name):
    task = get_task(f"ruler/{name}")
    half = task.score("yes one", Sample("i", task.name, 4096, "", (), references=["one", "two"]))
    assert half == ({"string_match_part": 1.0} if name.startswith("qa") else {"string_match_all": 0.5})
    with pytest.raises(UserError, match="list of strings"):
        task.score("one", Sample("i", task.name, 4096, "", (), references="one"))


def test_token_scores_are_refused():
    sample = Sample("i", "ruler/vt", 4096, "", (), references=["one"])
    with pytest.raises(UserError, match="generated text"):
        get_task("ruler/vt").score(TokenScores(None, None), sample)

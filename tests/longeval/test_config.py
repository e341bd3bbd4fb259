"""Configuration: what is understood and what is refused."""

import pytest

from longeval.config import RunConfig, parse_length, split_list
from longeval.errors import UserError
from longeval.tasks import TaskOptions


@pytest.mark.parametrize(
    ("text", "tokens"), [("4096", 4096), ("4k", 4096), (" 128K ", 131072), ("1m", 1 << 20), ("1000", 1000), ("0k", 0)]
)
def test_lengths(text, tokens):
    assert parse_length(text) == tokens


@pytest.mark.parametrize("text", ["", "k", "4kb", "-4k", "4.5k", "four"])
def test_lengths_that_are_none(text):
    with pytest.raises(UserError, match="4k"):
        parse_length(text)


def test_lists():
    assert split_list(["a,b", "b", " c "]) == ("a", "b", "c")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"suites": ()}, "no suite"),
        ({"backend": "troch"}, "did you mean torch"),
        ({"chat": "maybe"}, "known: auto, off, on"),
        ({"overflow": "cut"}, "overflow"),
        ({"limit": 0}, "at least 1"),
        ({"limit_tokens": 0}, "--limit-tokens must be at least 1"),
        ({"options": TaskOptions(max_length=-1)}, "--max-length must be at least 1"),
        ({"seed": -1}, "negative"),
        ({"lengths": (-1,)}, "negative"),
    ],
)
def test_refusals(wrong, message):
    with pytest.raises(UserError, match=message):
        RunConfig(**{"model": "demo", "suites": ("ruler",), **wrong})

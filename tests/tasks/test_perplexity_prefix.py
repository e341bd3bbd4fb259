"""The first tokens of a document are those of the whole document, whatever the tokenizer."""

import inspect
import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizers import FAMILIES, bpe, byte_level

from longeval.errors import UserError
from longeval.tasks.logprob import encode
from longeval.tasks.perplexity.documents import Document
from longeval.tasks.perplexity.prefix import document_prefix, first_tokens

PROSE = inspect.getsource(textwrap) * 2
TEXTS = {
    "code": PROSE,
    "no spaces": "".join(PROSE.split()),
    "wide spaces": PROSE.replace(" ", "   "),
    "other scripts": "日本語のテキスト、句読点。Ünïcödé — façade 🙂 " * 500,
    "line ends": PROSE.replace("\n", "\r\n"),
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("make", FAMILIES.values(), ids=FAMILIES)
def test_first_tokens_are_those_of_the_whole_text(make, text):
    tokenizer = make()
    whole = encode(tokenizer, text)
    for count in (1, 2, 50, 333, 1000, len(whole.ids), len(whole.ids) + 7):
        assert first_tokens(tokenizer, text, count) == whole.first(count)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=12), min_size=1, max_size=9), st.integers(1, 400), st.sampled_from(list(FAMILIES)))
def test_first_tokens_of_any_text(words, count, family):
    tokenizer = FAMILIES[family]()
    text = " ".join(words * 150)
    assert first_tokens(tokenizer, text, count) == encode(tokenizer, text).first(count)


def test_long_documents_are_not_tokenised_whole():
    tokenizer = byte_level()
    seen = []

    class Watched:
        is_fast = True
        backend_tokenizer = tokenizer.backend_tokenizer

        def __call__(self, text, **options):
            seen.append(len(text))
            return tokenizer(text, **options)

    first_tokens(Watched(), "word " * 200_000, 1000)
    assert sum(seen) < 20_000


def test_special_tokens_in_a_text_are_text():
    tokens = encode(bpe(), "a </s> b <s>")
    assert not {bpe().eos_token_id, bpe().bos_token_id} & set(tokens.ids)
    assert bpe().decode(tokens.ids) == "a </s> b <s>"
    # ... and markup that is encoded afterwards is still markup.
    assert bpe().backend_tokenizer.encode("<s>", add_special_tokens=False).ids == [bpe().bos_token_id]


def test_slow_tokenizers_are_refused():
    with pytest.raises(UserError, match=r"add a tokenizer\.json"):
        encode(object(), "text")
    with pytest.raises(UserError, match="no tokenizer"):
        encode(None, "text")


def test_parts_are_joined_by_the_end_of_sequence():
    tokenizer = byte_level()
    prefix = document_prefix(tokenizer, Document("d", ["ab", "", "cdé", "f"]), 7)
    eos = tokenizer.eos_token_id
    a, b, c, d = encode(tokenizer, "abcd").ids
    assert prefix.ids == [a, b, eos, eos, c, d, encode(tokenizer, "é").ids[0]]
    assert prefix.text == "ab</s></s>cdé"
    # The end-of-sequence tokens are in no file, and the é that the last token cuts in two counts whole.
    assert prefix.bytes == len("abcdé".encode())
    assert prefix.first_bytes == 1


def test_a_character_of_several_tokens_counts_to_the_last_of_them():
    prefix = document_prefix(byte_level(), Document("d", ["日本"]), 3)
    assert (prefix.bytes, prefix.first_bytes) == (3, 0)


def test_documents_that_are_too_short():
    tokenizer = byte_level()
    assert document_prefix(tokenizer, Document("d", ["abc", "def"]), 8) is None
    assert document_prefix(tokenizer, Document("d", ["abc", "def"]), 7) is not None

    def never():
        raise AssertionError("tokenised although it is known to be too short")
        yield

    assert document_prefix(tokenizer, Document("d", never(), most_tokens=7), 8) is None


@pytest.mark.parametrize("make", FAMILIES.values(), ids=FAMILIES)
def test_the_bound_without_tokenising_never_excludes_a_document(make):
    tokenizer = make()
    for text in ("a", "é", "日本", "🙂 b", "  x", " "):
        document = Document.of("d", text)
        assert len(encode(tokenizer, text).ids) <= document.most_tokens


def test_joining_needs_an_end_of_sequence_token():
    class NoEnd:
        is_fast = True
        eos_token_id = None
        backend_tokenizer = byte_level().backend_tokenizer

        def __call__(self, text, **options):
            return byte_level()(text, **options)

    assert document_prefix(NoEnd(), Document("d", ["abc"]), 3) is not None
    with pytest.raises(UserError, match="end-of-sequence"):
        document_prefix(NoEnd(), Document("d", ["ab", "c"]), 3)

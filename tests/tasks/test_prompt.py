"""Prompts: exactly one BOS, the tokenizer's own markup, the answer prefix verbatim."""

import copy

import pytest
from small_tokenizers import FAMILIES, bpe, byte_level

from longeval.errors import UserError
from longeval.tasks import Shot
from longeval.tasks.prompt import Prompter, shared_ids

PLAIN = (
    "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}[bot] {% endif %}"
)
WITH_BOS = "{{ bos_token }}" + PLAIN
# Turns begin with the token that the tokenizer calls its BOS, as SmolLM2's do.
TURNS = "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>\n{% endfor %}<s>assistant\n"


def chat(bos, template):
    tokenizer = copy.deepcopy(bpe(bos))
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("bos", "count"), [("added", 1), ("declared", 0), ("none", 0)])
def test_one_bos_where_the_tokenizer_adds_one(family, bos, count):
    tokenizer = FAMILIES[family](bos)
    prompter = Prompter(tokenizer, False)
    ids = prompter.with_bos(prompter.encode(["Some text.\n"])[0])
    assert ids == tuple(tokenizer("Some text.\n")["input_ids"])
    assert ids[0] == tokenizer.convert_tokens_to_ids("<s>") or not count
    assert (prompter.bos is not None) == bool(count)


@pytest.mark.parametrize(
    ("bos", "template", "count"),
    [
        ("added", PLAIN, 1),
        ("added", WITH_BOS, 1),
        ("declared", WITH_BOS, 1),
        ("declared", PLAIN, 0),
        ("declared", TURNS, 2),  # markup of two turns, and no BOS of its own
        ("added", TURNS, 3),
        ("none", PLAIN, 0),
    ],
)
def test_one_bos_with_a_chat_template(bos, template, count):
    tokenizer = chat(bos, template)
    prompter = Prompter(tokenizer, True)
    ids = prompter.with_bos(prompter.encode([prompter.text("Hello?", " It is")])[0])
    assert ids.count(tokenizer.convert_tokens_to_ids("<s>")) == count
    assert tokenizer.decode(ids).endswith(" It is")


def test_text_is_the_template_then_the_prefix():
    assert Prompter(bpe(), False).text("Q: {context}", " A:") == "Q: {context} A:"
    text = Prompter(chat("added", WITH_BOS), True).text("What?", "  prefix ", [Shot("Example?", " yes")])
    assert text == "[user] Example? [bot]  yes\n[user] What? [bot]   prefix "


def test_a_template_with_a_date_does_not_change_from_day_to_day():
    today = "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
    dated = today + "{{ date_string }} " + PLAIN
    assert Prompter(chat("none", dated), True).text("x").startswith("26 Jul 2024 ")


@pytest.mark.parametrize("family", FAMILIES)
def test_batches_encode_as_single_texts(family, monkeypatch):
    monkeypatch.setattr("longeval.tasks.prompt._BATCH_CHARACTERS", 40)
    tokenizer = FAMILIES[family]()
    texts = ["", "one", "two words\n\n", " leading and trailing ", "x" * 100, "Ünïcode – 12345", "</s> as text"]
    prompter = Prompter(tokenizer, False)
    single = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert prompter.encode(texts) == single
    assert prompter.count(texts) == [len(ids) for ids in single]
    assert prompter.encode([]) == []


def test_left_over_truncation_and_padding_do_nothing():
    tokenizer = copy.deepcopy(bpe())
    tokenizer.pad_token = "</s>"
    tokenizer(["a long text of many words", "b"], padding=True, truncation=True, max_length=4)
    assert len(Prompter(tokenizer, False).encode(["a long text of many words", "b"])[0]) > 4


def test_a_tokenizer_without_a_fast_backend():
    class Slow:
        """Words as tokens, in plain Python."""

        bos_token_id, bos_token, chat_template = 0, "<s>", None

        def __init__(self):
            self.ids = {"<s>": 0}

        def __call__(self, text, add_special_tokens=True, **more):
            if isinstance(text, list):
                return {"input_ids": [self(one, add_special_tokens)["input_ids"] for one in text]}
            ids = [self.ids.setdefault(word, len(self.ids)) for word in text.split()]
            return {"input_ids": [0, *ids] if add_special_tokens else ids}

    prompter = Prompter(Slow(), False)
    assert prompter.with_bos(prompter.encode(["a b a"])[0]) == (0, 1, 2, 1)
    assert prompter.count(["a b", "c"]) == [2, 1]


def test_a_tokenizer_that_does_more_than_its_backend_is_asked_itself():
    class Lower(type(byte_level())):
        def _encode_plus(self, text, *positional, **more):
            lowered = [one.lower() for one in text] if isinstance(text, list) else text.lower()
            return super()._encode_plus(lowered, *positional, **more)

    tokenizer = copy.deepcopy(byte_level("none"))
    tokenizer.__class__ = Lower
    assert Prompter(tokenizer, False).encode(["ABC"]) == [byte_level("none")("abc")["input_ids"]]


def test_bad_input():
    with pytest.raises(UserError, match="no tokenizer"):
        Prompter(None, False)
    with pytest.raises(UserError, match="--chat off"):
        Prompter(bpe(), True)


def test_identity_tells_modes_and_templates_apart():
    tokenizers = [
        (bpe(), False),
        (chat("added", PLAIN), False),
        (chat("added", PLAIN), True),
        (chat("added", TURNS), True),
    ]
    identities = [Prompter(tokenizer, mode).identity() for tokenizer, mode in tokenizers]
    assert identities[0] == identities[1]
    assert identities[1] != identities[2] != identities[3]


def test_shared_ids_are_one_object_each():
    first, second = shared_ids([70_001, 5]), shared_ids(iter([5, 70_001]))
    assert first == (70_001, 5)
    assert first[0] is second[1]

"""Every string and constant of RULER against the reference copy (protocol_strings.json)."""

import json
import random
from pathlib import Path

import pytest

from longeval.tasks import TaskOptions, get_suite, get_task
from longeval.tasks.ruler import protocol
from longeval.tasks.ruler.niah import singular

STRINGS = json.loads((Path(__file__).parent / "protocol_strings.json").read_text(encoding="utf-8"))["ruler"]
TASKS = [name for name in STRINGS if not name.startswith("_")]
COMMON = STRINGS["_common"]


def task(name):
    return get_task(f"ruler/{name}")


def test_the_suite_is_the_thirteen_tasks():
    suite = get_suite("ruler")
    assert list(suite.tasks) == TASKS
    assert len(TASKS) == 13
    assert suite.effective_threshold == 0.856
    assert {name: task(name).category for name in TASKS} == {
        **dict.fromkeys(TASKS[:8], "retrieval"),
        "vt": "multi-hop tracing",
        "cwe": "aggregation",
        "fwe": "aggregation",
        "qa_1": "question answering",
        "qa_2": "question answering",
    }


@pytest.mark.parametrize("name", TASKS)
def test_template_prefix_answer_tokens_and_rule(name):
    official, mine = STRINGS[name], task(name)
    assert mine.wording.template == official["template"]
    assert mine.wording.answer_prefix == official["answer_prefix"]
    assert mine.wording.tokens == official["tokens_to_generate"]
    assert mine.metric == official["metric"]


@pytest.mark.parametrize("name", TASKS[:8])
def test_needle_tasks(name):
    official, spec = STRINGS[name], task(name).spec
    arguments = official["args"]
    assert spec.haystack == arguments["type_haystack"]
    assert (spec.key_type, spec.value_type) == (arguments["type_needle_k"], arguments["type_needle_v"])
    assert spec.keys == official["effective_num_needle_k"]
    assert (spec.values, spec.queries) == (arguments["num_needle_v"], arguments["num_needle_q"])
    rewrite = singular if spec.single else str
    assert rewrite(official["template"]) == official["effective_template"]
    assert rewrite(official["answer_prefix"]) == official["effective_answer_prefix"]


def test_common_strings():
    assert COMMON["needle"]["value"] == protocol.NEEDLE
    assert COMMON["noise_sentence"]["value"] == protocol.NOISE
    assert list(protocol.DEPTHS) == COMMON["depths"]["value"]
    assert [list(pair) for pair in protocol.SINGULAR] == COMMON["singularisation"]["value"]
    assert COMMON["document_prompt"]["value"] == protocol.QA_DOCUMENT
    assert COMMON["document_separator"]["value"] == protocol.QA_SEPARATOR
    assert list(protocol.LENGTHS) == COMMON["seq_lengths"]["value"]
    assert COMMON["random_seed"]["value"] == protocol.SHUFFLE_SEED


def test_smallest_haystacks_are_rulers_steps():
    steps = COMMON["incremental"]["value"]
    assert steps["niah_essay"] == protocol.SMALLEST_WORDS
    assert steps["niah_noise"] == steps["niah_needle"] == protocol.SMALLEST_LINES
    assert steps["niah_not_essay_below_4096"] == protocol.SMALLEST_LINES_SHORT
    assert (steps["vt_noise"], steps["vt_noise_below_4096"]) == (protocol.VT_SMALLEST, protocol.VT_SMALLEST_SHORT)
    assert steps["vt_icl"] == protocol.VT_EXAMPLE_SMALLEST
    assert (steps["cwe"], steps["qa"]) == (protocol.CWE_SMALLEST, protocol.QA_SMALLEST)


def test_variable_tracking():
    official = STRINGS["vt"]
    assert official["statement_first"] == protocol.VT_FIRST
    assert official["statement_next"] == protocol.VT_NEXT
    assert protocol.VT_NEXT.endswith(" ")
    assert task("vt").wording.answer_prefix.endswith(": ")
    assert official["args"]["num_hops"] == protocol.VT_HOPS
    assert official["variable_length"] == protocol.VT_NAME_LENGTH
    assert official["icl"]["variable_length"] == protocol.VT_EXAMPLE_NAME_LENGTH
    assert official["icl"]["max_seq_length"] == protocol.VT_EXAMPLE_TOKENS
    assert range(10000, 99999) == protocol.VT_VALUES


def test_common_words():
    official, few = STRINGS["cwe"]["args"], STRINGS["cwe"]["fewshot"]
    assert protocol.Repeats(official["freq_cw"], official["freq_ucw"]) == protocol.CWE_REPEATS
    assert official["num_cw"] == protocol.CWE_COMMON
    long, short = few["at_or_above_4096"], few["below_4096"]
    assert long["num_words"] == protocol.CWE_EXAMPLE_WORDS
    assert protocol.Repeats(long["common_repeats"], long["uncommon_repeats"]) == protocol.CWE_EXAMPLE_REPEATS
    assert short["num_words"] == protocol.CWE_EXAMPLE_WORDS_SHORT
    assert protocol.Repeats(short["common_repeats"], short["uncommon_repeats"]) == protocol.CWE_EXAMPLE_REPEATS_SHORT
    sample = protocol.Repeats(short["sample_common_repeats"], short["sample_uncommon_repeats"])
    assert sample == protocol.CWE_REPEATS_SHORT


def test_frequent_words():
    official = STRINGS["fwe"]
    assert official["args"]["alpha"] == protocol.FWE_ALPHA
    assert official["coded_wordlen"] == protocol.FWE_WORD_LENGTH
    assert official["noise_word"] == protocol.FWE_NOISE
    assert official["num_answers"] == protocol.FWE_ANSWERS
    assert official["vocab_size_rule"].endswith(f"// {protocol.FWE_TOKENS_PER_WORD}")


def test_chat_markup_that_rulers_rewrite_would_change():
    templates = COMMON["chat_templates"]["value"]
    assert {name for name, text in templates.items() if singular(text) != text} == {"lwm-chat", "vicuna-chat"}


def test_the_permutation_is_the_one_of_a_fresh_generator():
    from longeval.tasks.ruler.words import fixed_permutation

    for size in (1, 2, 11, 396):
        items = [f"item {index}" for index in range(size)]
        mine = [items[index] for index in fixed_permutation(size)]
        random.Random(42).shuffle(items)
        assert mine == items


def test_a_haystack_is_essay_or_stdlib():
    with pytest.raises(Exception, match="known: essay, stdlib"):
        get_task("ruler/niah_single_2", TaskOptions(haystack="wikipedia"))

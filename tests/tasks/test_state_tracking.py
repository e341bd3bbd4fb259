"""The generated languages against independent simulations, and their tokens under every kind of tokenizer."""

import random
from collections import Counter

import numpy as np
import pytest
from small_tokenizers import FAMILIES, byte_level, joining

from longeval.errors import UserError
from longeval.tasks import DoesNotFit, TaskOptions, get_suite, get_task, select_tasks
from longeval.tasks.rng import sample_rng
from longeval.tasks.state_tracking import a5, mqrar
from longeval.tasks.state_tracking.flip_flop import flip_flop
from longeval.tasks.state_tracking.symbols import SymbolSequence
from longeval.types import TokenScores

TASKS = list(get_suite("state_tracking").tasks)


def task(name):
    return get_task(f"state_tracking/{name}")


# ---- flip-flop language


@pytest.mark.parametrize("ignore", [0.8, 0.98, 0.1])
def test_flip_flop_reads_what_was_written_last(ignore):
    sequence = flip_flop(random.Random(1), 20_000, ignore)
    instructions, bits = sequence.symbols[::2], sequence.symbols[1::2]
    assert instructions[0] == "w"
    assert instructions[-1] == "r"
    memory = None
    for instruction, bit in zip(instructions, bits, strict=True):
        if instruction == "w":
            memory = bit
        if instruction == "r":
            assert bit == memory
    assert sequence.targets == [2 * at + 1 for at, instruction in enumerate(instructions) if instruction == "r"]
    counts = Counter(instructions)
    for instruction, share in (("i", ignore), ("w", (1 - ignore) / 2), ("r", (1 - ignore) / 2)):
        assert counts[instruction] / 20_000 == pytest.approx(share, abs=0.012)
    free = Counter(bit for instruction, bit in zip(instructions, bits, strict=True) if instruction != "r")
    assert free["0"] / free.total() == pytest.approx(0.5, abs=0.02)


def test_flip_flop_settings_of_the_paper():
    shares = {}
    for name in ("flip_flop", "flip_flop_sparse", "flip_flop_dense"):
        instructions = [s for sample in task(name).build(byte_level(), 4096, 8) for s in sample.prompt.split()[::2]]
        shares[name] = instructions.count("i") / len(instructions)
    assert shares["flip_flop"] == pytest.approx(0.8, abs=0.02)
    assert shares["flip_flop_sparse"] == pytest.approx(0.98, abs=0.01)
    assert shares["flip_flop_dense"] == pytest.approx(0.1, abs=0.02)


# ---- A5


def test_a5_is_the_group_of_60_even_permutations():
    assert len(a5.ELEMENTS) == len(set(a5.ELEMENTS)) == 60
    assert a5.ELEMENTS[0] == a5.IDENTITY
    for g in a5.ELEMENTS:
        assert a5.compose(g, a5.IDENTITY) == a5.compose(a5.IDENTITY, g) == g
        assert sum(a5.compose(g, h) == a5.IDENTITY for h in a5.ELEMENTS) == 1
        assert {a5.compose(g, h) for h in a5.ELEMENTS} == set(a5.ELEMENTS)
    cycles = {tuple(sorted(_cycle_lengths(g))) for g in a5.ELEMENTS}
    assert cycles == {(1, 1, 1, 1, 1), (1, 1, 3), (1, 2, 2), (5,)}  # the even cycle types of five things
    assert list(a5.NAMES.values()) == sorted(a5.ELEMENTS)
    assert "".join(a5.NAMES) == "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwx"


def _cycle_lengths(element):
    seen = set()
    for start in range(5):
        length, at = 0, start
        while at not in seen:
            seen.add(at)
            at = element[at]
            length += 1
        if length:
            yield length


def test_generators_are_the_three_cycles_of_the_paper_and_their_inverses():
    # a = (1 2 3) sends 1 to 2, 2 to 3, 3 to 1; counted from 0 here.
    assert a5.GENERATORS["a"] == (1, 2, 0, 3, 4)
    assert a5.GENERATORS["b"] == (1, 3, 2, 0, 4)
    assert a5.GENERATORS["c"] == (1, 4, 2, 3, 0)
    for letter in "abc":
        assert a5.compose(a5.GENERATORS[letter], a5.GENERATORS[letter.upper()]) == a5.IDENTITY
    # Left acts first: under a then b, 1 goes to 2 and on to 4.
    assert a5.compose(a5.GENERATORS["a"], a5.GENERATORS["b"])[0] == 3
    # The paper's example: g1 g2 g1^-1 g2^-1 is not the identity.
    assert a5.product([a5.GENERATORS[letter] for letter in "abAB"]) != a5.IDENTITY


def test_the_free_letters_reach_every_element():
    reached = {a5.IDENTITY}
    for _ in range(a5._FREE):
        reached = {a5.compose(g, h) for g in reached for h in a5.GENERATORS.values()}
    assert reached == set(a5.ELEMENTS)


def follow(places, letter):
    """Where five things are after the cycle of `letter`, moved by hand."""
    cycle = {"a": "123", "b": "124", "c": "125", "A": "321", "B": "421", "C": "521"}[letter]
    move = dict(zip(cycle, cycle[1:] + cycle[0], strict=True))
    return [move.get(place, place) for place in places]


@pytest.mark.parametrize("letters", [2, 3, 7, 8, 9, 40])
def test_a5_identity_words(letters):
    answers = Counter()
    words = set()
    for seed in range(200):
        sequence = a5.a5_identity(random.Random(seed), letters)
        *word, equals, answer = sequence.symbols
        assert equals == "="
        assert len(word) == letters
        assert sequence.answers == [answer]
        places = list("12345")
        for letter in word:
            places = follow(places, letter)
        assert (places == list("12345")) == (answer == "1")
        answers[answer] += 1
        words.add("".join(word))
    assert 70 < answers["1"] < 130
    assert letters < 4 or len(words) > 150


def test_a5_product_words():
    answers = set()
    for seed in range(400):
        sequence = a5.a5_product(random.Random(seed), 12)
        *word, equals, answer = sequence.symbols
        assert equals == "="
        places = list(range(5))
        for name in word:
            places = [a5.NAMES[name][place] for place in places]
        assert a5.NAMES[answer] == tuple(places)
        assert sequence.answers == [answer]
        answers.add(answer)
    assert len(answers) > 50


# ---- MQRAR-N


@pytest.mark.parametrize("back", [1, 2, 3, 4])
def test_mqrar_asks_for_the_nth_last_value(back):
    steps = 3000
    sequence = mqrar.mqrar(random.Random(back), steps, back)
    history, asked, kinds = {}, Counter(), []
    symbols = iter(enumerate(sequence.symbols))
    targets = []
    for _, symbol in symbols:
        if symbol == "?":
            _, variable = next(symbols)
            at, value = next(symbols)
            targets.append(at)
            assert value == history[variable][-back]
            assert value not in history[variable][len(history[variable]) - back + 1 :]  # no later value is right
            asked[variable] += 1
            kinds.append("?")
        else:
            _, value = next(symbols)
            history.setdefault(symbol, []).append(value)
            kinds.append("=")
    assert targets == sequence.targets
    assert len(kinds) == steps
    assert len(history) == len(asked) == 32
    first = kinds.index("?")
    assert first >= 32 * back  # all variables have their values before the first question
    assert kinds[-1] == "?"
    assert kinds[32 * back :].count("?") / (steps - 32 * back) == pytest.approx(0.5, abs=0.03)
    assert Counter(value for values in history.values() for value in values).keys() == set("0123456789")


def test_mqrar_smallest_sequence():
    sequence = mqrar.mqrar(random.Random(0), mqrar.smallest(4), 4)
    assert len(sequence.symbols) == 32 * 4 * 2 + 3
    assert len(sequence.targets) == 1


def test_mqrar_of_few_variables():
    sequence = mqrar.mqrar(random.Random(0), 20, 1, "abc")
    assert {symbol for symbol in sequence.symbols if symbol.isalpha()} == set("abc")
    assert len(sequence.symbols) == 2 * 20 + len(sequence.targets)


# ---- as tokens


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", TASKS)
def test_samples_fill_their_length_and_never_exceed_it(name, family):
    tokenizer = FAMILIES[family]()
    for length in (777, 1600):
        for sample in task(name).build(tokenizer, length, 3, seed=5):
            assert length - 9 <= len(sample.ids) <= length  # a step takes 9 tokens at most
            assert sample.ids[0] == tokenizer.bos_token_id
            answers = [tokenizer.decode(sample.ids[first:last]).strip() for first, last in sample.meta["targets"]]
            assert "".join(answers) == sample.references[0]
            assert tokenizer.decode(sample.ids[1:]).strip() == sample.prompt


@pytest.mark.parametrize("name", TASKS)
def test_smallest_size(name):
    with pytest.raises(DoesNotFit) as small:
        task(name).build(byte_level(), 3, 1)
    smallest = small.value.smallest
    assert len(task(name).build(byte_level(), smallest, 1)[0].ids) == smallest
    with pytest.raises(DoesNotFit):
        task(name).build(byte_level(), smallest - 1, 1)


@pytest.mark.parametrize("name", TASKS)
def test_samples_depend_on_their_id_alone(name):
    length = 1600
    many = task(name).build(byte_level(), length, 4)
    assert task(name).build(byte_level(), length, 2) == many[:2]
    assert task(name).build_range(byte_level(), length, range(2, 4)) == many[2:]
    assert len({sample.prompt for sample in many}) == 4
    assert task(name).build(byte_level(), length, 1, seed=1)[0].prompt != many[0].prompt
    assert many[1].id == f"state_tracking/{name}/{length}/0/1"


def test_sample_rng_is_the_same_in_every_process():
    assert sample_rng("ruler/niah_single_1/4096/0/0").getrandbits(32) == 4_151_639_170
    assert sample_rng("a").random() != sample_rng("b").random()


def test_tokens_of_a_target_exclude_a_space_of_its_own():
    sequence = SymbolSequence(["w", "1", "r", "1"], [1, 3])
    ids, ranges = sequence.tokenized(FAMILIES["bytes"]())
    assert len(ids) == 7
    assert ranges == [(2, 3), (6, 7)]


def test_tokenizers_that_join_symbols_are_refused():
    with pytest.raises(UserError, match="joins the symbol"):
        task("flip_flop").build(joining(), 64, 1)


# ---- scores


def perfect(sample):
    n = len(sample.ids) - 1
    return TokenScores(np.full(n, -0.5, np.float32), np.ones(n, bool))


def test_scores_count_answers():
    sample = task("flip_flop_dense").build(byte_level(), 128, 1)[0]
    targets = sample.meta["targets"]
    scored = perfect(sample)
    assert task("flip_flop_dense").score(scored, sample) == {"accuracy": 1.0, "exact": 1.0, "nll": 0.5}
    scored.greedy[targets[0][0] - 1] = False
    scored.logprobs[targets[0][0] - 1] = -2.5
    found = task("flip_flop_dense").score(scored, sample)
    assert found["accuracy"] == 1 - 1 / len(targets)
    assert found["exact"] == 0.0
    assert found["nll"] == pytest.approx(0.5 + 2 / len(targets))


def test_tokens_beside_the_answers_do_not_matter():
    sample = task("mqrar_2").build(byte_level(), 777, 1)[0]
    scored = perfect(sample)
    answers = {token - 1 for first, last in sample.meta["targets"] for token in range(first, last)}
    others = [at for at in range(len(scored.greedy)) if at not in answers]
    scored.greedy[others] = False
    scored.logprobs[others] = -99
    assert task("mqrar_2").score(scored, sample) == {"accuracy": 1.0, "exact": 1.0, "nll": 0.5}


def test_an_answer_of_several_tokens_needs_all_of_them():
    import dataclasses

    sample = task("a5_product").build(byte_level(), 64, 1)[0]
    wide = dataclasses.replace(sample, meta={"targets": [[10, 12]]})
    scored = perfect(wide)
    assert task("a5_product").score(scored, wide) == {"accuracy": 1.0, "exact": 1.0, "nll": 1.0}
    scored.greedy[10] = False
    assert task("a5_product").score(scored, wide)["accuracy"] == 0.0


def test_text_is_no_prediction():
    sample = task("a5_identity").build(byte_level(), 64, 1)[0]
    with pytest.raises(UserError, match="from token log-probabilities"):
        task("a5_identity").score("1", sample)


def test_the_suite():
    tasks = select_tasks(["state_tracking"], [], TaskOptions())
    assert [t.short_name for t in tasks] == TASKS
    assert all(t.kind == "logprob" and t.percent and t.unit == "tokens" for t in tasks)
    assert {t.category for t in tasks} == {"flip-flop language", "A5 word problem", "repeated recall"}
    assert [min(t.lengths) for t in tasks if t.category == "repeated recall"] == [768] * 4
    assert all(t.data_status().problem is None and t.fingerprint() == {} for t in tasks)

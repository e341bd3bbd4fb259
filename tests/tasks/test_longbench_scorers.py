"""LongBench's metrics: cases worked out by hand, and the packages that define them."""

import threading
import warnings

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rouge import Rouge

from longeval.errors import UserError
from longeval.tasks.longbench_e.scorers import (
    classification_score,
    code_sim_score,
    count_score,
    first_line,
    fuzz_ratio,
    levenshtein,
    levenshtein_ratio,
    qa_f1_score,
    retrieval_score,
    rouge_score,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # fuzzywuzzy misses python-Levenshtein, without which it is the definition
    from fuzzywuzzy import fuzz


class TestQaF1:
    @pytest.mark.parametrize(
        ("prediction", "reference", "score"),
        [
            ("The Eiffel Tower!", "eiffel tower", 1.0),  # case, articles and punctuation do not count
            ("Paris, France", "paris", 2 / 3),  # precision 1/2, recall 1
            ("a b b c", "b b d", 4 / 6),  # a is an article; common b b; precision 2/3, recall 2/3
            ("", "", 0.0),  # empty on both sides is no match
            ("the", "an", 0.0),  # nothing but articles is empty
            ("don't", "dont", 1.0),  # punctuation goes without leaving a space
            ("theatre", "atre", 0.0),  # articles are whole words
            ("“Paris”", "Paris", 0.0),  # curly quotes stay
            ("well-known", "wellknown", 1.0),
            ("well–known", "wellknown", 0.0),  # so does an en dash
            ("yes\n\tno", "no yes", 1.0),  # the order of words does not count
        ],
    )
    def test_cases(self, prediction, reference, score):
        assert qa_f1_score(prediction, reference) == pytest.approx(score, abs=1e-12)


class TestClassification:
    @pytest.mark.parametrize(
        ("prediction", "reference", "classes", "score"),
        [
            ("abc", "abc", ["a", "ab", "abc"], 1 / 2),  # deleting `a` hides `ab` from the loop: the protocol's example
            ("abc", "abc", ["ab", "abc"], 1.0),
            ("abc", "abc", ["ab", "a", "abc"], 1 / 2),  # deleting ab hides a
            ("abc", "abc", ["a", "abc", "ab"], 1.0),  # deleting a hides abc, which stays anyway
            ("Type: Food", "Food", ["Food", "Animal"], 1.0),
            ("Food or Animal", "Food", ["Food", "Animal"], 1 / 2),
            ("food", "Food", ["Food", "Animal"], 0.0),  # case counts
            ("Animal", "Food", ["Food", "Animal"], 0.0),
            ("", "Food", ["Food", "Animal"], 0.0),
        ],
    )
    def test_cases(self, prediction, reference, classes, score):
        assert classification_score(prediction, reference, classes) == score

    @pytest.mark.parametrize("classes", [None, [], "Food", ["Food", 1]])
    def test_needs_a_list_of_class_names(self, classes):
        with pytest.raises(UserError, match="'all_classes', a list of class names"):
            classification_score("Food", "Food", classes)


class TestNumbers:
    @pytest.mark.parametrize(
        ("prediction", "score"),
        [
            ("5", 1.0),
            ("There are 5 of 20", 1 / 2),
            ("5, 5 and 6", 2 / 3),
            ("five", 0.0),
            ("15", 0.0),
            ("05", 0.0),
            ("", 0.0),
        ],
    )
    def test_count(self, prediction, score):
        assert count_score(prediction, "5") == score

    @pytest.mark.parametrize(
        ("prediction", "score"),
        [("Paragraph 12", 1.0), ("12", 1.0), ("Paragraph 1, 2", 0.0), ("Paragraph 12 (of 30)", 1 / 2), ("none", 0.0)],
    )
    def test_retrieval(self, prediction, score):
        assert retrieval_score(prediction, "Paragraph 12") == score

    def test_retrieval_reference_without_a_number(self):
        with pytest.raises(UserError, match="'Paragraph' and a number"):
            retrieval_score("Paragraph 12", "12")


class TestCode:
    @pytest.mark.parametrize(
        ("prediction", "reference", "score"),
        [
            ("return x\nmore", "return x", 1.0),
            ("\n\nreturn x", "return x", 1.0),  # leading newlines go
            ("# comment\n// other\n`code`\nreturn x", "return x", 1.0),  # the first line without any of the three
            ("# comment\n  \nreturn x", "  ", 1.0),  # a line of blanks is a line
            ("# only", "", 1.0),  # no line at all is the empty string
            ("# only", "x", 0.0),
            ("return x", "    return x", 0.8),  # the reference's indentation counts: 2·8/20
            ("ab", "abc", 0.8),
            ("a", "abcdef", 0.29),  # 2/7 = 0.2857…, a percentage rounded to an integer
        ],
    )
    def test_cases(self, prediction, reference, score):
        assert code_sim_score(prediction, reference) == score

    @given(st.text(max_size=60), st.text(max_size=60))
    @example("", "")
    @example("", "a")
    @example("a" * 300, "a" * 299 + "b")  # difflib calls letters of long texts junk
    def test_ratio_is_fuzzywuzzys(self, left, right):
        assert fuzz_ratio(left, right) == fuzz.ratio(left, right)

    @given(st.text("ab(){} =", max_size=300), st.text("ab(){} =", max_size=300))
    def test_ratio_of_code_like_lines(self, left, right):
        assert fuzz_ratio(left, right) == fuzz.ratio(left, right)


def common_characters(left, right):
    """The textbook table of a longest common subsequence."""
    row = [0] * (len(right) + 1)
    for one in left:
        above, row = row, [0]
        for place, other in enumerate(right):
            row.append(above[place] + 1 if one == other else max(above[place + 1], row[-1]))
    return row[-1]


class TestLevenshtein:
    @pytest.mark.parametrize(
        ("left", "right", "ratio"),
        [
            ("", "", 100),
            ("", "a", 0),
            ("ab", "abc", 80),
            ("abcd", "bcda", 75),  # common: bcd
            ("bcb", "cab", 67),  # common: cb
            ("abxcd", "abycd", 80),
        ],
    )
    def test_cases(self, left, right, ratio):
        assert levenshtein_ratio(left, right) == ratio

    @given(st.text("ab(){} =é", max_size=80), st.text("ab(){} =é", min_size=1, max_size=80))
    def test_is_twice_the_common_subsequence_over_both_lengths(self, left, right):
        assert levenshtein_ratio(left, right) == round(200 * common_characters(left, right) / len(left + right))
        assert levenshtein_ratio(left, right) >= fuzz_ratio(left, right)  # difflib's blocks are such a subsequence

    def test_compares_the_line_that_code_sim_score_compares(self):
        prediction = "\n# comment\ntree.select(item)\nmore"
        assert levenshtein(prediction, "tree.select(item)") == code_sim_score(prediction, "tree.select(item)") == 1.0
        assert code_sim_score("bcb", "cab") == 0.33  # difflib takes the first longest block, b, and what is left of it
        assert levenshtein("bcb", "cab") == 0.67


def upstream_rouge(prediction, reference):
    """As upstream calls the package: any exception is 0. A fresh thread has three frames below the call, as there."""

    class Fresh(threading.Thread):
        def run(self):
            try:
                self.score = Rouge().get_scores([prediction], [reference], avg=True)["rouge-l"]["f"]
            except (ValueError, RecursionError):
                self.score = 0.0

    thread = Fresh()
    thread.start()
    thread.join()
    return thread.score


def words(count, stem="w"):
    return " ".join(f"{stem}{number}" for number in range(count))


class TestRouge:
    @pytest.mark.parametrize(
        ("prediction", "reference", "score"),
        [
            ("the cat sat", "the cat sat", 0.999999995),  # an exact match is not 1
            ("the cat", "the dog", 0.5),
            ("The cat", "the cat", 0.5),  # case counts
            ("cat the", "the cat", 0.5),  # a subsequence keeps its order
            ("a b. c d", "c d. a b", 1.0),  # sentences are compared with sentences
            ("a a a a", "a", 1.0),  # sets: a word counts once
            ("a b. ", "a b", 0.8),  # a blank sentence is an empty word: precision 2/3, recall 1
            ("", "a", 0.0),
            ("...", "a", 0.0),
            ("a", "", 0.0),
        ],
    )
    def test_cases(self, prediction, reference, score):
        assert rouge_score(prediction, reference) == pytest.approx(score, abs=1e-8)

    @settings(max_examples=150, deadline=None)
    @given(*[st.text("ab .\n\té", max_size=80)] * 2)
    def test_is_the_package(self, prediction, reference):
        assert rouge_score(prediction, reference) == upstream_rouge(prediction, reference)

    @settings(max_examples=100, deadline=None)
    @given(
        *[st.lists(st.sampled_from(["the", "cat", "sat.", "on", "mat.", "a", "..", "dog"]), max_size=60).map(" ".join)]
        * 2
    )
    def test_is_the_package_on_sentences(self, prediction, reference):
        assert rouge_score(prediction, reference) == upstream_rouge(prediction, reference)

    @pytest.mark.parametrize(
        ("prediction", "reference"),
        [
            (words(990), words(990)),  # 990 steps back through the table fit Python's stack
            (words(991), words(991)),
            ("x " + words(989), words(990)),
            (words(980, "p"), words(60, "r") + " p979"),
            (words(400) + " " + words(591, "p"), words(400)),
            (words(400) + " " + words(590, "p"), words(400)),
            (words(1200, "p"), "r"),
            (words(500, "p") + ". " + words(300), words(300) + ". " + words(600, "q")),
        ],
    )
    def test_recursion_overflows_where_the_packages_does(self, prediction, reference):
        assert rouge_score(prediction, reference) == upstream_rouge(prediction, reference)

    def test_overflow_is_zero(self):
        assert rouge_score(words(990), words(990)) > 0.99
        assert rouge_score(words(991), words(991)) == 0.0


def test_first_line():
    assert first_line("\n\nanswer \nmore") == "answer "
    assert first_line(" \nanswer") == " "  # only newlines are dropped
    assert first_line("") == ""

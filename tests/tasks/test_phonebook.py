"""PhoneBook: strings, names by census frequency, the size of a book, positions, comparison."""

import json
import random
import re
from importlib.util import find_spec
from pathlib import Path
from statistics import mean

import names
import pytest
from small_tokenizers import bpe, byte_level, metaspace
from transformers import LlamaTokenizer

from longeval.errors import UserError
from longeval.tasks import DoesNotFit, Sample, TaskOptions, get_task, phonebook
from longeval.tasks.phonebook import full_names
from longeval.types import TokenScores

FAMILIES = [byte_level, bpe, metaspace]


@pytest.fixture(scope="module")
def strings(request):
    file = request.path.parent / "protocol_strings.json"
    return json.loads(file.read_text(encoding="utf-8"))["phonebook"]


def task(**options):
    return get_task("phonebook/lookup", TaskOptions(**options))


def entries(sample):
    """The book of a prompt as [(name, number)], its two shots and its query."""
    book, shots, query = sample.prompt.split("\n\n")
    read = lambda lines: [tuple(line.split(": ")) for line in lines.split("\n")]  # noqa: E731
    return read(book), read(shots), query


class TestProtocol:
    def test_strings_and_numbers(self, strings):
        upstream, ours = strings["jelassi"], strings["longeval_default"]
        assert upstream["entry"] == phonebook.ENTRY
        assert upstream["fewshot"] == phonebook.SHOTS
        assert upstream["query"] == phonebook.QUERY
        assert upstream["max_new_tokens"] == phonebook.NEW_TOKENS
        assert upstream["batch_size"] * upstream["num_batches"] == ours["num_samples"] == task().count
        assert task().lengths == tuple(ours["lengths"])

    def test_prompt(self, strings):
        """Entries, a blank line, two of them, a blank line, the third name with a colon and nothing after it."""
        upstream = strings["jelassi"]
        for sample in task().build(bpe(), 600, 8):
            book, shots, query = entries(sample)
            lines = [upstream["entry"].format(name=name, number=number) for name, number in book]
            a, b = (upstream["entry"].format(name=name, number=number) for name, number in shots)
            name = query.removesuffix(":")
            assert sample.prompt == (
                upstream["entry_joiner"].join(lines)
                + upstream["fewshot"].format(entry_a=a, entry_b=b)
                + upstream["query"].format(name=name)
            )
            assert sample.references == [dict(book)[name]]
            assert len({name, shots[0][0], shots[1][0]}) == 3
            assert set(shots) < set(book)

    def test_names_are_the_packages_draw_by_draw(self):
        ours = full_names(random.Random(20))
        state = random.getstate()
        try:
            random.seed(20)
            assert [next(ours) for _ in range(150)] == [names.get_full_name() for _ in range(150)]
        finally:
            random.setstate(state)

    def test_numbers(self):
        numbers = [number for sample in task().build(bpe(), 2048, 20) for _, number in entries(sample)[0]]
        assert len(numbers) > 300
        assert all(re.fullmatch("[6-9][0-9]{9}", number) for number in numbers)
        for position in range(10):
            assert {number[position] for number in numbers} == set("6789" if position == 0 else "0123456789")

    def test_names_of_a_book_are_distinct(self):
        for sample in task().build(bpe(), 2048, 10):
            book = entries(sample)[0]
            assert len({name for name, _ in book}) == len(book)

    def test_no_chat_template(self):
        tokenizer = byte_level()
        tokenizer.chat_template = "{% for m in messages %}[{{ m['content'] }}]{% endfor %}"
        try:
            assert task().build(tokenizer, 600, 3, chat=True) == task().build(tokenizer, 600, 3)
        finally:
            tokenizer.chat_template = None


class TestSize:
    @pytest.mark.parametrize("bos", ["added", "none"])
    @pytest.mark.parametrize("make", FAMILIES)
    @pytest.mark.parametrize("length", [512, 1500])
    def test_fits_with_bos_and_answer_and_one_entry_more_does_not(self, make, bos, length):
        tokenizer = make(bos)
        samples = task().build(tokenizer, length)
        sizes = {sample.meta["entries"] for sample in samples}
        assert len(sizes) == 1
        assert all(list(sample.ids) == tokenizer(sample.prompt).input_ids for sample in samples)
        assert max(len(sample.ids) for sample in samples) + 50 <= length
        size = sizes.pop() + 1
        longer = [phonebook.Book(sample.id).prompt(size) for sample in samples]
        assert max(len(tokenizer(prompt).input_ids) for prompt in longer) + 50 > length

    def test_size_does_not_depend_on_count(self):
        whole = task().build(bpe(), 600, 100)
        assert task().build(bpe(), 600, 5) == whole[:5]
        assert task().build(bpe(), 600) == whole[:96]
        assert task().build_range(bpe(), 600, range(90, 100)) == whole[90:]

    def test_later_samples_that_do_not_fit_are_drawn_again(self):
        samples = task().build(byte_level(), 460, 300)
        assert len(samples) == 300
        assert len({sample.meta["entries"] for sample in samples}) == 1
        assert max(len(sample.ids) for sample in samples) + 50 <= 460
        again = [s for s in samples if not s.prompt.startswith(phonebook.Book(s.id).lines(1)[0])]
        assert again, "no sample had to be drawn again: choose another length for this test"

    def test_seeds_and_lengths_have_books_of_their_own(self):
        first = task().build(bpe(), 600, 2, seed=0)
        assert first == task().build(bpe(), 600, 2, seed=0)
        prompts = {s.prompt[:40] for s in [*first, *task().build(bpe(), 600, 2, seed=1), *task().build(bpe(), 601, 2)]}
        assert len(prompts) == 6

    def test_smallest(self):
        with pytest.raises(DoesNotFit) as small:
            task().build(byte_level(), 100)
        smallest = small.value.smallest  # of these books; those of another length are others
        assert {sample.meta["entries"] for sample in task().build(byte_level(), smallest + 10)} == {3}
        with pytest.raises(DoesNotFit):
            task().build(byte_level(), smallest - 10)

    @pytest.mark.parametrize(("length", "size", "average"), [(2048, 110, 112), (4096, 227, 229), (8192, 461, 464)])
    def test_mistrals_tokenizer(self, tmp_path, length, size, average):
        """The PaTH paper's models count with it. An average entry has 17.4 tokens, so a book of `average` entries fits
        on average; that all 96 fit costs two or three entries."""
        if not (find_spec("mistral_common") and find_spec("sentencepiece")):
            pytest.skip("needs mistral_common, which carries the tokenizer, and sentencepiece, which reads it")
        package = Path(find_spec("mistral_common").origin).parent
        (tmp_path / "tokenizer.model").symlink_to(package / "data" / "tokenizer.model.v1")
        tokenizer = LlamaTokenizer.from_pretrained(tmp_path, add_bos_token=True)
        assert tokenizer("Hello\nworld").input_ids == [1, 22557, 13, 9471]
        samples = task().build(tokenizer, length)
        assert {sample.meta["entries"] for sample in samples} == {size}
        books = [phonebook.Book(sample.id) for sample in samples]
        fits = [
            mean(len(tokenizer(book.prompt(entries)).input_ids) for book in books) + 50 <= length
            for entries in (average, average + 1)
        ]
        assert fits == [True, False]


class TestPositions:
    def test_query_is_anywhere_in_the_book(self):
        samples = task().build(bpe(), 1024, 400)
        depths = [sample.meta["depths"][0] for sample in samples]
        for low in range(0, 100, 20):
            assert sum(low <= depth < low + 20 for depth in depths) > 40  # of 80 expected

    def test_meta_tells_the_position(self):
        for sample in task().build(bpe(), 600, 20):
            book, shots, query = entries(sample)
            meta = sample.meta
            assert meta["entries"] == len(book)
            assert book[meta["query_entry"]] == (query.removesuffix(":"), sample.references[0])
            assert [book[entry] for entry in meta["shot_entries"]] == shots
            assert meta["depths"] == [pytest.approx(100 * meta["query_entry"] / len(book), abs=0.01)]

    def test_number_of_entries_is_noted(self):
        samples = task().build(bpe(), 1024, 1)
        assert task().cell_note(samples) == f"{samples[0].meta['entries']} entries"


def score(prediction, **options):
    sample = Sample("", "phonebook/lookup", 0, "", (), references=["6730215736"])
    return task(**options).score(prediction, sample)["accuracy"]


class TestScore:
    @pytest.mark.parametrize(
        ("prediction", "expected"),
        [
            (" 6730215736", 1.0),
            ("6730215736\n\nLisa Smith: 6332245383", 1.0),
            ("\t6730215736 \nmore", 1.0),
            ("6730215736<|endoftext|>", 0.0),
            ("\n6730215736", 0.0),  # the answer is what stands before the first newline
            ("673021573", 0.0),
            ("67302157361", 0.0),
            ("The number is 6730215736", 0.0),
            ("", 0.0),
        ],
    )
    def test_cases(self, prediction, expected):
        assert score(prediction) == expected
        assert score(prediction, strict=True) == expected

    def test_strict_asks_for_the_special_tokens(self):
        assert task(strict=True).keep_special_tokens
        assert not task().keep_special_tokens
        assert "end-of-text" in task(strict=True).notes()[0]
        assert task().notes() == []

    def test_token_scores_are_no_prediction(self):
        with pytest.raises(UserError, match="from generated text"):
            score(TokenScores(None, None))

    def test_generation_ends_where_nothing_more_is_read(self):
        sample = task().build(bpe(), 600, 1)[0]
        assert (sample.max_new_tokens, sample.stop, sample.min_new_tokens) == (50, ("\n",), 0)

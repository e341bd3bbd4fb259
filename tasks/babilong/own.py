"""BABILONG's own build: the facts of a bAbI story scattered between sentences of books, filled to a length.

Follows booydar/babilong at 7a6efee2 (data/create_tasks.py, babilong/babilong_utils.py): facts and background together
are exactly the nominal length less 300 tokens; stories with more lines than an eighth of that are dropped; background
sentences of fewer than 10 tokens are dropped, and only the last one is cut; every fact falls into a slot between
sentences at random, and facts keep their order.

Known deviations: seeded by the sample's id, without a background left over from the sample before; stories whose facts
alone exceed the budget are dropped and counted (upstream fails on them); a sentence that cannot be cut to the exact
token is passed over.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longeval.errors import UserError
from longeval.tasks.babilong import protocol
from longeval.tasks.babilong.books import Books, choose_books, sentences
from longeval.tasks.babilong.counting import Counter, find_gpt2, load_gpt2
from longeval.tasks.babilong.hub import Question
from longeval.tasks.babilong.stories import Story, read_stories, story_file
from longeval.tasks.base import DoesNotFit, TaskOptions
from longeval.tasks.corpora import file_hash
from longeval.tasks.rng import sample_rng

_BARREN_EXCERPTS = 50  # in a row: then the books have nothing to offer


@dataclass(frozen=True)
class Ingredients:
    """What own builds of a task are made of; `gpt2` is None where lengths are counted with the tested tokenizer."""

    stories: Path
    books: Books
    gpt2: Path | None

    @classmethod
    def find(cls, task: str, options: TaskOptions) -> Ingredients:
        """UserError for what is missing."""
        data_dir = options.data_dir
        return cls(story_file(task, data_dir), choose_books(options.books, data_dir), find_gpt2(data_dir))

    def fingerprint(self) -> dict[str, str]:
        """Hashes of everything."""
        return {
            "stories": f"{self.stories.name} {file_hash(self.stories)}",
            "books": f"{self.books.name} {self.books.digest()}",
            "counted_with": f"gpt2 {file_hash(self.gpt2)}" if self.gpt2 else "the tested tokenizer",
        }

    def __str__(self) -> str:
        counted = "GPT-2's tokenizer" if self.gpt2 else "the tested tokenizer, as GPT-2's is not at hand"
        return (
            f"facts of bAbI's {self.stories.stem.rpartition('_')[2]} files in {self.books.name}, counted with {counted}"
        )


def build(
    ingredients: Ingredients, task: str, nominal: int, count: int | None, seed: int, tokenizer: Any
) -> list[tuple[Question, dict[str, Any]]]:
    """The first `count` samples of a nominal length, fewer when there are no more stories, each with its `meta`.

    Every length asks the same stories in the same order, as far as it can hold them. At 0 there are only the facts.
    """
    stories = read_stories(ingredients.stories, task)
    sample_rng(f"babilong/{task}/{seed}/stories").shuffle(stories)
    if nominal == 0:
        return [(_question(" ".join(story.facts), story), {"facts": len(story.facts)}) for story in stories[:count]]
    counter = Counter(load_gpt2(ingredients.gpt2) if ingredients.gpt2 else tokenizer)
    budget = nominal - protocol.PROMPT_TOKENS
    chosen = stories_that_fit(stories, budget, counter)
    texts = ingredients.books.texts()
    found = []
    for index, story in enumerate(chosen.stories[:count]):
        context, meta = mix(story, budget, texts, counter, sample_rng(f"babilong/{task}/{nominal}/{seed}/{index}"))
        found.append((_question(context, story), {**meta, **chosen.dropped}))
    return found


def _question(context: str, story: Story) -> Question:
    return Question(context, story.question, story.answer)


@dataclass(frozen=True)
class Chosen:
    """Stories that fit a budget, in the order asked for, and how many were `dropped` for which reason."""

    stories: list[Story]
    dropped: dict[str, int]


def stories_that_fit(stories: Sequence[Story], budget: int, counter: Counter) -> Chosen:
    """The stories that upstream keeps for `budget` tokens and whose facts fit it. DoesNotFit when none does."""
    short = [story for story in stories if story.lines <= budget // protocol.TOKENS_PER_LINE]
    fitting = [story for story in short if fact_tokens(story, counter) <= budget]
    if not fitting:
        least = min(max(s.lines * protocol.TOKENS_PER_LINE, fact_tokens(s, counter)) for s in stories)
        raise DoesNotFit(least + protocol.PROMPT_TOKENS)
    dropped = {"dropped_long": len(stories) - len(short), "dropped_over_budget": len(short) - len(fitting)}
    return Chosen(fitting, dropped)


def fact_tokens(story: Story, counter: Counter) -> int:
    """Tokens of all facts of a story."""
    return int(counter.facts(list(story.facts)).sum())


def mix(
    story: Story, budget: int, texts: Sequence[str], counter: Counter, rng: random.Random
) -> tuple[str, dict[str, Any]]:
    """The context of exactly `budget` tokens, and what `meta` says of it.

    `depths`: where the supporting facts begin, in percent of the budget, in the order of the text.
    """
    facts = list(zip(story.facts, counter.facts(list(story.facts)).tolist(), strict=True))
    background = _background(budget - sum(cost for _, cost in facts), budget, texts, counter, rng)
    slots = sorted(rng.randrange(len(background) + 1) for _ in facts)
    order = [(slot, 0, number) for number, slot in enumerate(slots)]  # a slot's facts stand before its sentence
    order += [(slot, 1, slot) for slot in range(len(background))]
    pieces, depths, position = [], [], 0
    for _, is_background, number in sorted(order):
        text, cost = background[number] if is_background else facts[number]
        if not is_background and number in story.supporting:
            depths.append(round(100 * position / budget, 2))
        pieces.append(text)
        position += cost
    meta = {"budget": budget, "facts": len(facts), "sentences": len(background), "depths": depths}
    return " ".join(pieces), meta


def _background(
    missing: int, budget: int, texts: Sequence[str], counter: Counter, rng: random.Random
) -> list[tuple[str, int]]:
    """Sentences with their tokens, `missing` in all; only the last one is cut.

    Where too little is missing for any cut (one token, when that is a space), the sentence before gives way to others.
    """
    found: list[tuple[str, int]] = []
    barren = 0  # excerpts in a row that brought nothing
    excerpts = sentences(texts, rng, protocol.EXCERPT_CHARACTERS * max(budget, 1000))
    while missing:
        excerpt = next(excerpts)
        before = missing
        for text, tokens in zip(excerpt, counter.sentences(excerpt).tolist(), strict=True):
            if tokens < protocol.SHORTEST_SENTENCE:
                continue
            kept = text if tokens <= missing else counter.cut(text, missing)
            if kept is None:
                continue
            found.append((kept, min(tokens, missing)))
            missing -= found[-1][1]
            if not missing:
                break
        barren = barren + 1 if missing == before else 0
        if barren and found and missing < protocol.SHORTEST_SENTENCE:
            missing += found.pop()[1]
        elif barren >= _BARREN_EXCERPTS:
            least = protocol.SHORTEST_SENTENCE
            raise UserError(f"the books have no sentences of {least} tokens or more; choose others with --books")
    return found

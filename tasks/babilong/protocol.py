"""What BABILONG fixes: the wording of its prompts, the answers of each task, and the numbers of its samples.

Source: booydar/babilong (Apache-2.0) at 7a6efee2, babilong/prompts.py, babilong/metrics.py, data/create_tasks.py and
scripts/run_model_on_babilong.py. The curly quotes of qa1 and qa2 (U+2019 on both sides) and qa2's missing space are
upstream's; the tests compare every string byte by byte.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

TEMPLATE = "{instruction}\n\n{examples}\n\n{post_prompt}\n\n<context>\n{context}\n</context>\n\nQuestion: {question}"
PARTS = ("instruction", "examples", "post_prompt")
NEW_TOKENS = 20

# Own build: nominal lengths are GPT-2 tokens with this many set apart for the prompt, which comes on top all the same.
PROMPT_TOKENS = 300
TOKENS_PER_LINE = 8  # stories of more lines than the budget has groups of this many tokens are dropped
SHORTEST_SENTENCE = 10  # tokens; shorter background sentences are dropped
EXCERPT_CHARACTERS = 10  # of a book, per token of the budget

# What stands before each of these in turn is the answer. The text is in lower case by then, so the last never matches.
OUTPUT_CUTS = (".", "<context>", "<example>", "Question")

OFFICIAL_LENGTHS = {
    0: "0k",
    **{n * 1000: f"{n}k" for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)},
    1_000_000: "1M",
    10_000_000: "10M",
}


@dataclass(frozen=True)
class Wording:
    """A task's parts of the prompt, and `labels`, which every answer is one of."""

    instruction: str
    examples: str
    post_prompt: str
    labels: tuple[str, ...]

    def prompt(self, context: str, question: str, parts: Collection[str] = PARTS) -> str:
        """The whole prompt, stripped, which takes the question's final space. A missing part leaves its blank lines."""
        wording = {part: getattr(self, part) if part in parts else "" for part in PARTS}
        return TEMPLATE.format(context=context.strip(), question=question, **wording).strip()


_PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")

TASKS = {
    "qa1": Wording(
        instruction=(
            "I will give you context with the facts about positions of different persons hidden in some random text "
            "and a question. You need to answer the question based only on the information from the facts. If a "
            "person was in different locations, use the latest location to answer the question."
        ),
        examples=(
            "<example>\n"
            "Charlie went to the hallway. Judith come back to the kitchen. Charlie travelled to balcony. Where is "
            "Charlie?\n"
            "Answer: The most recent location of Charlie is balcony.\n"
            "</example>\n\n"
            "<example>\n"
            "Alan moved to the garage. Charlie went to the beach. Alan went to the shop. Rouse travelled to balcony. "
            "Where is Alan?\n"
            "Answer: The most recent location of Alan is shop.\n"
            "</example>"
        ),
        post_prompt=(
            "Always return your answer in the following format: The most recent location of ’person’ is ’location’. "
            "Do not write anything else after that."
        ),
        labels=_PLACES,
    ),
    "qa2": Wording(
        instruction=(
            "I give you context with the facts about locations and actions of different persons hidden in some "
            "random text and a question.You need to answer the question based only on the information from the facts."
            "\n"
            "If a person got an item in the first location and travelled to the second location the item is also in "
            "the second location. If a person dropped an item in the first location and moved to the second location "
            "the item remains in the first location."
        ),
        examples=(
            "<example>\n"
            "Charlie went to the kitchen. Charlie got a bottle. Charlie moved to the balcony. Where is the bottle?\n"
            "Answer: The bottle is in the balcony.\n"
            "</example>\n"
            "<example>\n"
            "Alan moved to the garage. Alan got a screw driver. Alan moved to the kitchen. Where is the screw driver?"
            "\n"
            "Answer: The screw driver is in the kitchen.\n"
            "</example>"
        ),
        post_prompt=(
            "Always return your answer in the following format: The ’item’ is in ’location’. Do not write anything "
            "else after that."
        ),
        labels=_PLACES,
    ),
    "qa3": Wording(
        instruction=(
            "I give you context with the facts about locations and actions of different persons hidden in some "
            "random text and a question. You need to answer the question based only on the information from the "
            "facts.\n"
            "If a person got an item in the first location and travelled to the second location the item is also in "
            "the second location. If a person dropped an item in the first location and moved to the second location "
            "the item remains in the first location."
        ),
        examples=(
            "<example>\n"
            "John journeyed to the bedroom. Mary grabbed the apple. Mary went back to the bathroom. Daniel journeyed "
            "to the bedroom. Daniel moved to the garden. Mary travelled to the kitchen. Where was the apple before "
            "the kitchen?\n"
            "Answer: Before the kitchen the apple was in the bathroom.\n"
            "</example>\n"
            "<example>\n"
            "John went back to the bedroom. John went back to the garden. John went back to the kitchen. Sandra took "
            "the football. Sandra travelled to the garden. Sandra journeyed to the bedroom. Where was the football "
            "before the bedroom?\n"
            "Answer: Before the bedroom the football was in the garden.\n"
            "</example>"
        ),
        post_prompt=(
            "Always return your answer in the following format: Before the $location_1$ the $item$ was in the "
            "$location_2$. Do not write anything else after that."
        ),
        labels=_PLACES,
    ),
    "qa4": Wording(
        instruction=(
            "I will give you context with the facts about different people, their location and actions, hidden in "
            "some random text and a question. You need to answer the question based only on the information from the "
            "facts."
        ),
        examples=(
            "<example>\n"
            "The hallway is south of the kitchen. The bedroom is north of the kitchen. What is the kitchen south of?"
            "\n"
            "Answer: bedroom\n"
            "</example>\n"
            "<example>\n"
            "The garden is west of the bedroom. The bedroom is west of the kitchen. What is west of the bedroom?\n"
            "Answer: garden\n"
            "</example>"
        ),
        post_prompt="Your answer should contain only one word - location. Do not write anything else after that.",
        labels=_PLACES,
    ),
    "qa5": Wording(
        instruction=(
            "I will give you context with the facts about locations and their relations hidden in some random text "
            "and a question. You need to answer the question based only on the information from the facts."
        ),
        examples=(
            "<example>\n"
            "Mary picked up the apple there. Mary gave the apple to Fred. Mary moved to the bedroom. Bill took the "
            "milk there. Who did Mary give the apple to?\n"
            "Answer: Fred\n"
            "</example>\n"
            "<example>\n"
            "Jeff took the football there. Jeff passed the football to Fred. Jeff got the milk there. Bill travelled "
            "to the bedroom. Who gave the football?\n"
            "Answer: Jeff\n"
            "</example>\n"
            "<example>\n"
            "Fred picked up the apple there. Fred handed the apple to Bill. Bill journeyed to the bedroom. Jeff went "
            "back to the garden. What did Fred give to Bill?\n"
            "Answer: apple\n"
            "</example>"
        ),
        post_prompt=(
            "Your answer should contain only one word. Do not write anything else after that. Do not explain your "
            "answer."
        ),
        labels=("Bill", "Fred", "Jeff", "Mary", "apple", "football", "milk"),
    ),
}

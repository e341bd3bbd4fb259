"""bAbI stories: the facts, question and answer of BABILONG's own builds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from longeval.errors import UserError
from longeval.tasks.babilong.hub import check_target
from longeval.tasks.corpora import Corpus


@dataclass(frozen=True)
class Story:
    """The statements before a question, the question (with the space that bAbI ends it with) and its answer.

    `supporting`: which facts the answer follows from, counted from 0.
    """

    facts: tuple[str, ...]
    question: str
    answer: str
    supporting: tuple[int, ...]

    @property
    def lines(self) -> int:
        """Facts and the question, which is what upstream's limit on long stories counts."""
        return len(self.facts) + 1


class _Stories(Corpus):
    """The folder en-10k as a user may hold it: under its own name, unpacked from the archive, or itself."""

    def locate(self, data_dir: Path | None = None) -> Path | None:
        inside = ("babi", "babi/en-10k", "en-10k", "tasks_1-20_v1-2/en-10k", ".")
        places = [data_dir / name for name in inside] if data_dir else []
        return next((place for place in places if any(place.glob("qa*_*.txt"))), super().locate(data_dir))

    def remedy(self) -> str:
        return "put the folder en-10k of bAbI's archive tasks_1-20_v1-2 into --data-dir"


BABI = _Stories(
    name="babi",
    title="bAbI tasks v1.2 (Facebook AI Research), folder en-10k",
    filename="babi",
    licence="CC BY 3.0",
    used_by="babilong (own build)",
)


def story_file(task: str, data_dir: Path | None) -> Path:
    """`qa1_…_train.txt`, of which BABILONG is made, else the test file. UserError when there is neither."""
    folder = BABI.require(data_dir)
    for part in ("train", "test"):
        if found := sorted(folder.glob(f"{task}_*_{part}.txt")):
            return found[0]
    raise UserError(f"{folder} holds no {task}_*_train.txt or _test.txt; take them from bAbI's folder en-10k")


def read_stories(file: Path, task: str) -> list[Story]:
    """One story per question of the file, in its order. UserError naming file and line for bad data."""
    stories: list[Story] = []
    facts: dict[int, str] = {}  # by the line's own number; a question's support refers to it
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not UTF-8 (byte {error.start}); fetch bAbI again") from error
    last = 0
    for place, line in enumerate(lines, start=1):
        where = f"{file} line {place}"
        number, _, text = line.partition(" ")
        if number not in ("1", str(last + 1)) or not text:
            raise UserError(f"{where}: must be the next number (or 1), a space and a statement; fetch bAbI again")
        last = int(number)
        if last == 1:
            facts = {}
        question, *answer = text.split("\t")
        if answer:
            stories.append(_story(facts, question, answer, task, where))
        else:
            facts[last] = text
    if not stories:
        raise UserError(f"{file} has no questions; fetch bAbI again")
    return stories


def _story(facts: dict[int, str], question: str, answer: list[str], task: str, where: str) -> Story:
    check_target(answer[0], task, where)
    if not facts:
        raise UserError(f"{where}: a question without any statement before it; fetch bAbI again")
    numbers = answer[1].split() if len(answer) > 1 else []
    order = list(facts)
    if not all(number.isdecimal() and int(number) in facts for number in numbers):
        raise UserError(
            f"{where}: its supporting facts {' '.join(numbers)} are not all lines before it; fetch bAbI again"
        )
    return Story(tuple(facts.values()), question, answer[0], tuple(order.index(int(number)) for number in numbers))

"""Where a task's samples come from: a published set, or an own build."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any

from longeval.errors import UserError
from longeval.tasks.babilong import hub, own
from longeval.tasks.babilong.hub import Question
from longeval.tasks.babilong.protocol import OFFICIAL_LENGTHS
from longeval.tasks.base import DataStatus, TaskOptions, one_of
from longeval.tasks.corpora import Corpus, file_hash, hub_answers

OWN_BUILD = "own build"
_BOTH_SETS_TO = 32000  # upstream's scripts take the larger set up to here


class Source:
    """The samples of one task as `--babilong-data` wants them."""

    def __init__(self, task: str, options: TaskOptions) -> None:
        self.task = task
        self.options = options
        self.choice = one_of("babilong-data", options.babilong_data, ("auto", "100", "1k", "own"))

    @cached_property
    def _sets(self) -> list[Corpus]:
        """The published sets to take samples from; none when all are own builds."""
        if self.choice != "auto":
            return {"own": [], "100": [hub.HUNDRED], "1k": [hub.THOUSAND, hub.HUNDRED]}[self.choice]
        local = [corpus for corpus in (hub.HUNDRED, hub.THOUSAND) if hub.at_hand(corpus, self.options.data_dir)]
        return local[:1] or ([hub.HUNDRED] if hub_answers() else [])

    @cached_property
    def _ingredients(self) -> own.Ingredients:
        return own.Ingredients.find(self.task, self.options)

    def questions(
        self, nominal: int, count: int | None, seed: int, tokenizer: Any
    ) -> list[tuple[Question, dict[str, Any]]]:
        """The first `count` samples of a nominal length, fewer when there are no more, with what `meta` says of each.

        `meta["data"]`: the published set with a hash of its rows, or "own build".
        """
        published = self._published(nominal)
        if published is None:
            built = own.build(self._ingredients, self.task, nominal, count, seed, tokenizer)
            return [(question, {"data": OWN_BUILD, **meta}) for question, meta in built]
        rows = hub.questions(published, nominal, self.task, self.options.data_dir)
        digest = hashlib.sha256(repr(rows).encode()).hexdigest()[:16]
        meta = {"data": f"{published.hub_id} {OFFICIAL_LENGTHS[nominal]}/{self.task} {digest}"}
        return [(question, meta) for question in rows[:count]]

    def _published(self, nominal: int) -> Corpus | None:
        """The published set with the length, None for an own build. UserError where none of the two is wanted."""
        if not self._sets or (self.choice == "auto" and nominal not in OFFICIAL_LENGTHS):
            return None
        if nominal not in OFFICIAL_LENGTHS:
            known = ", ".join(OFFICIAL_LENGTHS.values())
            raise UserError(f"BABILONG's published lengths are {known}, not {nominal:,}; use --babilong-data own")
        return self._sets[0] if nominal <= _BOTH_SETS_TO else self._sets[-1]

    def status(self) -> DataStatus:
        """See Task.data_status; asks the hub whether it answers when nothing is on this machine."""
        if self._sets:
            missing = [corpus for corpus in self._sets if not hub.at_hand(corpus, self.options.data_dir)]
            problem = "; ".join(corpus.remedy() for corpus in missing) if missing and not hub_answers() else None
            return DataStatus(", ".join(str(corpus.hub_id) for corpus in self._sets), problem, fetched=bool(missing))
        try:
            return DataStatus(f"own build: {self._ingredients}")
        except UserError as error:
            hint = f"; or {hub.HUNDRED.remedy()}" if self.choice == "auto" else ""
            return DataStatus("own build", f"{error}{hint}")

    def fingerprint(self) -> dict[str, Any]:
        """What decides the samples: hashes of the user's own files, names of what the hub has."""
        facts: dict[str, Any] = {str(corpus.hub_id): self._local_hashes(corpus) for corpus in self._sets}
        try:
            return {**facts, "own_build": self._ingredients.fingerprint()}
        except UserError:
            if not self._sets:
                raise
            return facts  # no own build is possible, so none decides anything

    def _local_hashes(self, corpus: Corpus) -> dict[str, str] | str:
        data_dir = self.options.data_dir
        for folder in hub.folders(corpus, data_dir):
            if data_dir is not None and folder.is_relative_to(data_dir):
                found = {name: hub.files(folder, length, self.task) for length, name in OFFICIAL_LENGTHS.items()}
                return {name: "+".join(map(file_hash, files)) for name, files in found.items() if files}
        return "hub"

    def note(self) -> str | None:
        """A line under every table, when all samples are own builds."""
        return None if self._sets else f"own build: {self._ingredients}"

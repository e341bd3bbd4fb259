"""Multi-query repeated associative recall, N-back: what was the N-th last value that a variable was given?

PaTH, section 4.1 (MQRAR-N, after Tan et al. 2024, arXiv 2410.17980): 32 key-value pairs, sequences of 768 tokens, N
from 1 to 4; the answers are labels beside the input. The paper's text says no more about its sequences.

Chosen here: one stream of text in which `x 3` gives the variable x the value 3 and `? x 3` asks for x's N-th last
value, the target. 32 letters are variables, digits are values. First come N shuffled rounds of assignments to all
variables, then assignments and questions are equally likely, each about a uniformly drawn variable; the last is a
question. A new value differs from the variable's last N - 1, so that recalling a later value than the N-th last is
never right. Chance is about 1/10.
"""

from __future__ import annotations

import random
import string
from collections.abc import Sequence

from longeval.tasks.state_tracking.symbols import SymbolSequence

VARIABLES = (string.ascii_lowercase + string.ascii_uppercase)[:32]


def smallest(back: int, variables: Sequence[str] = VARIABLES) -> int:
    """The fewest steps: `back` assignments to every variable, and one question."""
    return back * len(variables) + 1


def mqrar(rng: random.Random, steps: int, back: int, variables: Sequence[str] = VARIABLES) -> SymbolSequence:
    """`steps` assignments and questions with N = `back`; the task has all `variables`."""
    values: dict[str, list[str]] = {variable: [] for variable in variables}
    symbols: list[str] = []
    targets: list[int] = []

    def assign(variable: str) -> None:
        given = values[variable]
        recent = given[max(0, len(given) + 1 - back) :]
        given.append(rng.choice([digit for digit in string.digits if digit not in recent]))
        symbols.extend([variable, given[-1]])

    def ask(variable: str) -> None:
        symbols.extend(["?", variable, values[variable][-back]])
        targets.append(len(symbols) - 1)

    for _ in range(back):
        for variable in rng.sample(variables, len(variables)):
            assign(variable)
    for _ in range(steps - smallest(back, variables)):
        step = rng.choice([assign, ask])
        step(rng.choice(variables))
    ask(rng.choice(variables))
    return SymbolSequence(symbols, targets)

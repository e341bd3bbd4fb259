"""Multi-query repeated associative recall, N-back: what was the N-th last value that a variable was given?

PaTH, section 4.1 (MQRAR-N, after Tan et al. 2024, arXiv 2410.17980): 32 key-value pairs, sequences of 768 tokens, N
from 1 to 4; the answers are labels beside the input. The paper's text says no more about its sequences.

Chosen here: one stream of text with writes and reads apart, `w x 3` gives x the value 3 and `r x 3` reads x's N-th last
value, the target; letters for variables, digits for values; the first 32 N writes are N shuffled rounds over all
variables, so that each soon has N values, later writes are uniform; from the first possible read on, reads and writes
are equally likely, reads of a uniformly drawn variable that has N values; the last instruction is a read. A new value
differs from the variable's last N - 1, so that recalling a later value than the N-th last is never right. Chance is
about 1/10.
"""

from __future__ import annotations

import random
import string

from longeval.tasks.state_tracking.symbols import SymbolSequence

VARIABLES = (string.ascii_lowercase + string.ascii_uppercase)[:32]


def smallest(back: int) -> int:
    """Instructions until the first read: all variables `back` - 1 times, one of them once more, and the read."""
    return len(VARIABLES) * (back - 1) + 2


def mqrar(rng: random.Random, instructions: int, back: int) -> SymbolSequence:
    """`instructions` writes and reads with N = `back`."""
    values: dict[str, list[str]] = {variable: [] for variable in VARIABLES}
    readable: list[str] = []
    rounds = [variable for _ in range(back) for variable in rng.sample(VARIABLES, len(VARIABLES))]
    rounds.reverse()
    symbols: list[str] = []
    targets: list[int] = []
    for left in range(instructions, 0, -1):
        if readable and (left == 1 or rng.random() < 0.5):
            variable = rng.choice(readable)
            targets.append(len(symbols) + 2)
            symbols += ["r", variable, values[variable][-back]]
            continue
        variable = rounds.pop() if rounds else rng.choice(VARIABLES)
        given = values[variable]
        recent = given[max(0, len(given) + 1 - back) :]
        given.append(rng.choice([digit for digit in string.digits if digit not in recent]))
        if len(given) == back:
            readable.append(variable)
        symbols += ["w", variable, given[-1]]
    return SymbolSequence(symbols, targets)

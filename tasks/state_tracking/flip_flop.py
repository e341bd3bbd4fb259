"""Flip-flop language: a one-bit memory that is written, read and left alone.

Liu et al. 2023 (arXiv 2306.00946), FFL(p): instructions `w` (write), `r` (read) and `i` (ignore), each with a bit
behind it; the first instruction is a write, the last a read, the others are ignores with probability p and writes or
reads with (1 - p) / 2 each. Bits behind w and i are uniform, the bit behind r is the one last written: the target.
"""

from __future__ import annotations

import random

from longeval.tasks.state_tracking.symbols import SymbolSequence

SMALLEST = 2


def flip_flop(rng: random.Random, pairs: int, ignore: float) -> SymbolSequence:
    """`pairs` instructions with their bits; `ignore` is the probability p. Chance is 1/2."""
    memory = rng.choice("01")
    symbols = ["w", memory]
    targets: list[int] = []
    for left in range(pairs - 1, 0, -1):
        instruction = "r" if left == 1 else rng.choices("iwr", [ignore, (1 - ignore) / 2, (1 - ignore) / 2])[0]
        if instruction == "r":
            targets.append(len(symbols) + 1)
            symbols += ["r", memory]
            continue
        bit = rng.choice("01")
        if instruction == "w":
            memory = bit
        symbols += [instruction, bit]
    return SymbolSequence(symbols, targets)

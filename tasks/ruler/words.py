"""Words, keys and values: RULER's lists from the package wonderwords, and draws that never repeat."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import version
from importlib.resources import files
from itertools import repeat
from uuid import UUID

from longeval.errors import UserError
from longeval.tasks.ruler.protocol import SHUFFLE_SEED, Values

# The lists decide every word task, and other versions have others.
_VERSION = "3.0.1"


def _read(name: str) -> list[str]:
    if (found := version("wonderwords")) != _VERSION:
        raise UserError(
            f"wonderwords {found} has other word lists than RULER's: run `pip install wonderwords=={_VERSION}`"
        )
    lines = files("wonderwords").joinpath("assets", name).read_text(encoding="utf-8").splitlines()
    return [line.rstrip() for line in lines]


@lru_cache(maxsize=1)
def adjectives_and_nouns() -> tuple[list[str], list[str]]:
    """910 adjectives and 6,782 nouns, distinct and sorted; a key is `adjective-noun`, every pair equally likely."""
    return sorted(set(_read("adjectivelist.txt"))), sorted(set(_read("nounlist.txt")))


@lru_cache(maxsize=1)
def word_list() -> list[str]:
    """All 8,166 distinct nouns, adjectives and verbs, sorted and then shuffled the same way in every run."""
    words = sorted({word for name in ("nounlist", "adjectivelist", "verblist") for word in _read(f"{name}.txt")})
    random.Random(SHUFFLE_SEED).shuffle(words)
    return words


@lru_cache(maxsize=128)
def fixed_permutation(size: int) -> tuple[int, ...]:
    """Where each place of a list of `size` takes its item from in the shuffle that is the same in every sample."""
    order = list(range(size))
    random.Random(SHUFFLE_SEED).shuffle(order)
    return tuple(order)


def distinct(rng: random.Random, population: int) -> Iterator[int]:
    """Integers below `population`, uniform, each at most once."""
    seen: set[int] = set()
    while len(seen) < population:
        number = rng.randrange(population)
        if number not in seen:
            seen.add(number)
            yield number


def draws(rng: random.Random, kind: Values) -> Iterator[str]:
    """Keys or values of one kind, without end (as far as anyone will read) and each at most once."""
    if kind == "uuids":
        return (str(UUID(int=rng.getrandbits(128), version=4)) for _ in repeat(None))
    if kind == "numbers":
        return (str(1_000_000 + number) for number in distinct(rng, 9_000_000))
    adjectives, nouns = adjectives_and_nouns()
    pairs = (divmod(number, len(nouns)) for number in distinct(rng, len(adjectives) * len(nouns)))
    return (f"{adjectives[adjective]}-{nouns[noun]}" for adjective, noun in pairs)

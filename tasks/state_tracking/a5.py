"""Word problems of A5, the group of the 60 even permutations of five things: NC1-complete, so out of reach of a
transformer whose positions do not depend on the input (under the usual conjectures).

An element is the tuple of images of 0 ... 4. Words are read from left to right: in the product g h, g acts first, so
(g h)(x) = h(g(x)).

- Identity (PaTH, section 4.1): a word over the three-cycles a = (1 2 3), b = (1 2 4), c = (1 2 5) and their inverses
  A, B, C; is its product the identity (`1`) or not (`0`)? Half of the words are. Chance is 1/2.
- Product (Merrill et al. 2024, arXiv 2404.08819): a word of uniformly drawn elements; which element is its product?
  Elements are written `0` ... `9`, `A` ... `Z`, `a` ... `x` in the lexicographic order of their tuples. Chance is 1/60.
  Merrill et al. label every prefix of the word beside the input; in one stream of text the labels would be read
  by the model and turn the task into single steps, so only the whole word is asked for.
"""

from __future__ import annotations

import random
import string
from functools import reduce
from itertools import combinations, permutations

from longeval.tasks.state_tracking.symbols import SymbolSequence

Element = tuple[int, ...]

IDENTITY: Element = (0, 1, 2, 3, 4)
SMALLEST = 2  # no single generator is the identity
_FREE = 8  # letters at the end of a word that are drawn again until its product is as wanted; any element takes 8


def compose(first: Element, then: Element) -> Element:
    """The product `first then`: `first` acts before `then`."""
    return tuple(then[image] for image in first)


def _even(element: Element) -> bool:
    return sum(x > y for x, y in combinations(element, 2)) % 2 == 0


ELEMENTS: tuple[Element, ...] = tuple(filter(_even, permutations(range(5))))
NAMES = dict(zip(string.digits + string.ascii_uppercase + string.ascii_lowercase, ELEMENTS, strict=False))


def _three_cycle(x: int, y: int, z: int) -> Element:
    images = list(IDENTITY)
    images[x], images[y], images[z] = y, z, x
    return tuple(images)


GENERATORS: dict[str, Element] = {
    "a": _three_cycle(0, 1, 2),
    "b": _three_cycle(0, 1, 3),
    "c": _three_cycle(0, 1, 4),
    "A": _three_cycle(0, 2, 1),
    "B": _three_cycle(0, 3, 1),
    "C": _three_cycle(0, 4, 1),
}


def product(elements: list[Element]) -> Element:
    """The product of a word from left to right."""
    return reduce(compose, elements, IDENTITY)


def a5_identity(rng: random.Random, letters: int) -> SymbolSequence:
    """A word of `letters` generators, `=`, and whether it is the identity.

    All letters but the last eight are drawn freely; those are drawn until the answer is the one tossed for.
    """
    answer = rng.choice("01")
    alphabet = list(GENERATORS)
    free = max(0, letters - _FREE)
    head = rng.choices(alphabet, k=free)
    reached = product([GENERATORS[letter] for letter in head])
    while True:
        tail = rng.choices(alphabet, k=letters - free)
        total = compose(reached, product([GENERATORS[letter] for letter in tail]))
        if (total == IDENTITY) == (answer == "1"):
            return SymbolSequence([*head, *tail, "=", answer], [letters + 1])


def a5_product(rng: random.Random, letters: int) -> SymbolSequence:
    """A word of `letters` elements, `=`, and the name of their product."""
    word = rng.choices(list(NAMES), k=letters)
    answer = ELEMENTS.index(product([NAMES[name] for name in word]))
    return SymbolSequence([*word, "=", list(NAMES)[answer]], [letters + 1])

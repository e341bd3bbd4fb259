"""The one exception for bad input, and what its messages are made of."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input or configuration: one line saying what is wrong, where, and how to mend it.

    The command line prints the message and exits with status 2.
    """


def nearest(name: str, known: Iterable[str]) -> str:
    """A `; did you mean ...?` for an unknown `name`, or the known names when none is close."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return f"; did you mean {', '.join(close)}?"
    return f"; known: {', '.join(names)}"


def one_line(error: BaseException) -> str:
    """The first line of a foreign error's message, its type's name where it has none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__

"""`python -m longeval` is the `longeval` command."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Ctrl-C comes after it. During an import it would be hidden by the imported, or end in a traceback."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def main() -> None:
    """Entry point of the `longeval` command."""
    try:
        with _interrupts_wait():
            from longeval.cli import main as command_line
        command_line()
    except KeyboardInterrupt:  # before a command runs; those say how to go on
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()

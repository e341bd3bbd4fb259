"""`python -m longeval` is the `longeval` command."""

import sys

from longeval.interrupts import interrupts_wait


def main() -> None:
    """Entry point of the `longeval` command."""
    try:
        with interrupts_wait():  # during an import one would be hidden by the imported, or end in a traceback
            from longeval.cli import main as command_line
        command_line()
    except KeyboardInterrupt:  # before a command runs; those say how to go on
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()

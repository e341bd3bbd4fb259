"""`python -m longeval` is the `longeval` command."""

import sys


def main() -> None:
    """The command line. What it needs is imported here: Ctrl-C may come before that has ended."""
    try:
        from longeval.cli import main as command_line
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    command_line()


if __name__ == "__main__":
    main()

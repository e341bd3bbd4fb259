"""`python -m longeval` is the `longeval` command."""

from longeval.cli import main

if __name__ == "__main__":
    main()

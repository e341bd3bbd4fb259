"""The command line. One file per subcommand; bad input is one line on stderr and exit status 2."""

from __future__ import annotations

import io
import sys

import typer
from rich.console import Console
from typer.exceptions import TyperException

from longeval.cli import compare, data, demo, doctor, export, leaderboard, parity, prompt, run, score, show, tasks
from longeval.errors import UserError

app = typer.Typer(
    name="longeval",
    help="What a language model does beyond its training length.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
for module in (run, show, compare, export, demo, score, prompt, parity, tasks, data, doctor):
    app.command(module.__name__.rpartition(".")[2])(module.command)
app.add_typer(leaderboard.app, name="leaderboard")


_INTERRUPTED = 130  # what Typer makes of Ctrl-C


def main(argv: list[str] | None = None) -> None:
    """Runs the command line and ends the process with its status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # whatever the locale: tables and exports are UTF-8
            stream.reconfigure(encoding="utf-8")
    errors = Console(stderr=True, soft_wrap=True)
    arguments = sys.argv[1:] if argv is None else argv
    try:
        status = app(arguments, prog_name="longeval", standalone_mode=False)
        if status == _INTERRUPTED:
            resumes = "; the same command again resumes" if arguments[:1] in (["run"], ["demo"]) else ""
            errors.print(f"interrupted{resumes}", style="yellow")
    except (UserError, OSError) as error:  # an OSError says what the system refused, and where
        errors.print(f"error: {error}", style="red", markup=False, highlight=False)
        status = 2
    except TyperException as error:
        if not (message := error.format_message()):  # a group without a command has shown its help instead
            sys.exit(2)
        errors.print(f"error: {message}", style="red", markup=False, highlight=False)
        status = 2
    sys.exit(status or 0)

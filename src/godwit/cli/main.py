"""The command line, `godwit`; the composition root, which may import everything.

Exit statuses: 0 done; 1 the answer is no (a checkpoint that is damaged, a demo that differs); 2 it
could not be done, as one message that says what to do; 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from godwit import __version__
from godwit.model.errors import GodwitError
from godwit.model.wording import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

_DESCRIPTION = """\
Godwit: elastic, stateful stream processing on Apache Spark, from Python. The state of a running
PySpark stream moves between executors while the stream flows.
"""
_EPILOG = """\
start here:
  godwit demo                          see a live migration and a recovery on your machine
  godwit checkpoint inspect PATH       what a query has committed, and how large it is
  godwit checkpoint verify PATH        whether a checkpoint is whole
  godwit top PATH                      a running stream in the terminal
  godwit ui PATH                       the same as a page in the browser
  godwit report PATH -o run.html       ... as one file to send
  godwit advise EVENTLOG               what an ordinary Spark run lost to unbalanced state
  godwit plan example assignment > p.json  a problem for the planners ...
  godwit plan compare p.json           ... and what each of them would do
  godwit sim skew                      the controller on a cluster that you do not have
  godwit what-if PATH --rate 10x       a stream with other executors, before you pay for them
  godwit reproduce --list              the figures of the papers, redrawn

Each command explains itself with --help. Streams themselves are started from Python: import godwit.
"""


# Command, its module, whose `add_<command>_command` adds it, and the extra with what it needs.
_COMMANDS = {
    "demo": ("godwit.cli.demo.command", "demo"),
    "checkpoint": ("godwit.cli.checkpoint", "cli"),
    "top": ("godwit.cli.top", "cli"),
    "ui": ("godwit.cli.ui", "cli"),
    "report": ("godwit.cli.ui", "cli"),
    "advise": ("godwit.cli.advise", "cli"),
    "plan": ("godwit.cli.plan", "planning"),
    "sim": ("godwit.cli.sim", "planning"),
    "what-if": ("godwit.cli.what_if", "planning"),
    "reproduce": ("godwit.cli.reproduce.command", "planning"),
}


def parser() -> argparse.ArgumentParser:
    """Build the parser of the whole command line."""
    root = argparse.ArgumentParser(
        prog="godwit",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action="version", version=f"godwit {__version__}")
    root.add_argument(
        "--traceback", action="store_true", help="show where in the code an error comes from"
    )
    commands = root.add_subparsers(dest="command", metavar="COMMAND")
    for name, (module, extra) in _COMMANDS.items():
        try:
            add = getattr(importlib.import_module(module), f"add_{name.replace('-', '_')}_command")
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("godwit"):
                raise
            _add_unavailable(commands, name, extra, error.name or "a package")
        else:
            add(commands)
    return root


def _add_unavailable(commands: Any, name: str, extra: str, package: str) -> None:
    """Add a command that only says what to install for it."""

    def refuse(_args: argparse.Namespace) -> int:
        raise _missing(package, extra)

    # No character begins an option, so that whatever is asked of the command is taken.
    command = commands.add_parser(
        name,
        help=f"(needs: pip install 'godwit-streams[{extra}]')",
        add_help=False,
        prefix_chars="\0",
    )
    command.add_argument("rest", nargs="*")
    command.set_defaults(run=refuse)


def _missing(package: str, extra: str) -> GodwitError:
    """Return the error that a package of an extra is not installed."""
    return GodwitError(
        f"It needs the package {package}, which is not installed.",
        remedy=f"pip install 'godwit-streams[{extra}]'",
        package=package,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Parameters
    ----------
    arguments
        Without the program's name; by default those of the process.
    """
    command_line = parser()
    args = command_line.parse_args(arguments)
    if args.command is None:
        command_line.print_help()
        return 2
    try:
        status = _run(args)
        # Here and not at exit, where a closed pipe could not be answered any more.
        sys.stdout.flush()
    except GodwitError as error:
        if args.traceback:
            raise
        print(f"godwit {args.command}: {printable(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader has seen enough, as in `godwit ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


def _run(args: argparse.Namespace) -> int:
    """Run a command; name the extra to install if a package is missing."""
    try:
        status: int = args.run(args)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "godwit"):
            raise
        raise _missing(package, _COMMANDS[args.command][1]) from error
    return status


if __name__ == "__main__":
    sys.exit(main())

"""The command line, `godwit`; the composition root, which may import everything.

Exit statuses: 0 done; 1 the answer is no (a checkpoint that is damaged, a demo that differs); 2 it
could not be done, as one message that says what to do; 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NoReturn

from godwit import __version__
from godwit.model.errors import GodwitError
from godwit.model.naming import did_you_mean
from godwit.model.wording import printable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

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


# Command, its module, whose `add_<command>_arguments` configures its parser, the extra with what it
# needs, and what it is for.
_COMMANDS = {
    "demo": (
        "godwit.cli.demo.command",
        "demo",
        "a live migration and a killed executor, on your machine, in a minute or two",
    ),
    "checkpoint": (
        "godwit.cli.checkpoint",
        "cli",
        "what is in a checkpoint, whether it is whole; copy it, rename and drop its state",
    ),
    "top": (
        "godwit.cli.top",
        "cli",
        "a running stream in the terminal: load, speed, migrations, decisions",
    ),
    "ui": ("godwit.cli.ui", "cli", "a running or past stream as a page in the browser"),
    "report": ("godwit.cli.ui", "cli", "a run as one HTML file to send"),
    "advise": (
        "godwit.cli.advise",
        "cli",
        "what an ordinary Spark streaming run lost to unbalanced state, from its event log",
    ),
    "plan": ("godwit_lab.cli.plan", "planning", "what a planner would do with a problem"),
    "sim": (
        "godwit_lab.cli.sim",
        "planning",
        "what the controller would do on a cluster that you do not have",
    ),
    "what-if": (
        "godwit_lab.cli.what_if",
        "planning",
        "latency of a stream with other executors or rates, before anybody pays for them",
    ),
    "reproduce": (
        "godwit_lab.cli.reproduce.command",
        "planning",
        "redraw the figures of the papers, and say where ours agree",
    ),
}
# A package of each extra, by which `godwit --help` sees whether it is installed.
_PACKAGE_OF = {"cli": "rich", "demo": "matplotlib", "planning": "scipy"}


def parser(commands: Collection[str] = tuple(_COMMANDS)) -> argparse.ArgumentParser:
    """Return the parser of the command line.

    Parameters
    ----------
    commands
        Commands whose modules are imported for their arguments, which takes up to a second. The
        parser knows only the name and the purpose of the others.

    Raises
    ------
    GodwitError
        If a package that one of these commands needs is not installed.
    """
    root = _Parser(
        prog="godwit",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action="version", version=f"godwit {__version__}")
    root.add_argument(
        "--traceback", action="store_true", help="show where in the code an error comes from"
    )
    subparsers = root.add_subparsers(dest="command", metavar="COMMAND")
    for name, (module, extra, purpose) in _COMMANDS.items():
        if find_spec(_PACKAGE_OF[extra]) is None:
            purpose = f"(needs: pip install 'godwit-streams[{extra}]')"  # noqa: PLW2901
        command = subparsers.add_parser(name, help=purpose)
        if name in commands:
            with _naming_the_extra(name):
                added = f"add_{name.replace('-', '_')}_arguments"
                getattr(import_module(module), added)(command)
    return root


class _Parser(argparse.ArgumentParser):
    """Parser whose errors suggest what was meant, and name the command that they are of."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse, and refuse what a command does not know by that command's own parser."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown

    def error(self, message: str) -> NoReturn:
        """End the process with a message, the names that are like the wrong one, and the help."""
        found = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message)
        wrong, known = "", list(self._option_string_actions)
        if found is not None:
            wrong, known = found[1], re.findall(r"[\w-]+", found[2])
        elif message.startswith("unrecognized arguments: -"):
            wrong = message.split()[2].partition("=")[0]
        hint = did_you_mean(wrong, known) if wrong else ""
        super().error(f"{message}. {hint}See {self.prog} --help.")


@contextmanager
def _naming_the_extra(command: str) -> Iterator[None]:
    """Context in which a missing package's error names the extra to install for a command."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "godwit"):
            raise
        extra = _COMMANDS[command][1]
        raise GodwitError(
            f"It needs the package {package}, which is not installed.",
            remedy=f"pip install 'godwit-streams[{extra}]'",
            package=package,
        ) from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Parameters
    ----------
    arguments
        Without the program's name; by default those of the process.
    """
    given = sys.argv[1:] if arguments is None else arguments
    command = next((argument for argument in given if not argument.startswith("-")), "")
    try:
        command_line = parser((command,))
        args = command_line.parse_args(given)
        if args.command is None:
            command_line.print_help()
            return 2
        with _naming_the_extra(command):
            status: int = args.run(args)
        # Here and not at exit, where a closed pipe could not be answered any more.
        sys.stdout.flush()
    except GodwitError as error:
        if "--traceback" in given:
            raise
        print(f"godwit {command}: {printable(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader has seen enough, as in `godwit ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


if __name__ == "__main__":
    sys.exit(main())

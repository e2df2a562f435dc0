"""The command line, `godwit`: finds commands, and imports the module of the one that is called.

All commands are entry points of the group ``godwit.commands``.

Exit statuses: 0 done; 1 negative result (a checkpoint that is damaged, a demo that differs); 2 it
could not be done, as one message that says what to do; 130 stopped by Ctrl-C. Some commands have
more: all are in a table of the guide page *Running*.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from godwit import __version__
from godwit.model import plugins
from godwit.model.errors import GodwitError, PluginError
from godwit.model.naming import did_you_mean
from godwit.model.text import printable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from godwit.cli.command import Command

_DESCRIPTION = """\
Godwit: elastic, stateful stream processing on Apache Spark, from Python. The state of a running
PySpark stream moves between executors while the stream flows.
"""
_EPILOG = """\
start here:
  godwit demo                          see a live migration and a recovery on your machine
  godwit checkpoint inspect PATH       what a query has committed, and how large it is
  godwit checkpoint verify PATH        whether a checkpoint is whole
  godwit run app.py                    a program with a query, started again when it fails
  godwit stop PATH, godwit drain PATH  end a query, at once or once its input is processed
  godwit status PATH                   whether a query runs, for scripts; godwit probe: for probes
  godwit top PATH                      a running stream in the terminal
  godwit ui PATH                       the same as a page in the browser
  godwit report PATH -o run.html       ... as one file to send
  godwit advise EVENTLOG               what an ordinary Spark run lost to unbalanced state
  godwit adopt OLD                     how a Spark query continues here with the state it has
  godwit export-state PATH DIR         the state of a query as Parquet tables

Each command explains itself with --help. Streams themselves are started from Python: import godwit.
"""


def command_names() -> tuple[str, ...]:
    """Return the names of all commands, which are entry points."""
    return tuple(plugins.names("commands"))


def parser(commands: Collection[str] | None = None) -> argparse.ArgumentParser:
    """Return the parser of the command line.

    Parameters
    ----------
    commands
        Commands whose modules are imported for their arguments, which takes up to a second; all by
        default. The parser knows only the name and the purpose of the others.

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
    for name in command_names():
        try:
            described: Command = plugins.load("commands", name)
        except PluginError as error:
            if commands is not None and name in commands:
                raise
            subparsers.add_parser(name, help=f"({error.message})")
            continue
        missing = described.missing
        purpose = f"(needs: pip install '{missing}')" if missing else described.purpose
        command = subparsers.add_parser(name, help=purpose)
        if commands is None or name in commands:
            with _naming_what_to_install(name):
                added = f"add_{name.replace('-', '_')}_arguments"
                getattr(import_module(described.module), added)(command)
    for name, package in plugins.absent("commands").items():
        subparsers.add_parser(name, help=f"(needs: pip install {package})")
        if commands is not None and name in commands:
            plugins.load("commands", name)
    return root


class _Parser(argparse.ArgumentParser):
    """Parser whose errors suggest similar names, and name their command."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse, and refuse unknown arguments by the parser of their command."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown

    def error(self, message: str) -> NoReturn:
        """End the process with a message, the names that are like the wrong one, and the help."""
        match = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message)
        unknown_name, known = "", list(self._option_string_actions)
        if match is not None:
            unknown_name, known = match[1], re.findall(r"[\w-]+", match[2])
        elif message.startswith("unrecognized arguments: -"):
            unknown_name = message.split()[2].partition("=")[0]
        hint = did_you_mean(unknown_name, known) if unknown_name else ""
        super().error(f"{message}. {hint}See {self.prog} --help.")


@contextmanager
def _naming_what_to_install(command: str) -> Iterator[None]:
    """Context in which a missing package's error says what to install for a command."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "godwit"):
            raise
        described: Command = plugins.load("commands", command)
        raise GodwitError(
            f"It needs the package {package}, which is not installed.",
            remedy=f"pip install '{described.install or package}'",
            package=package,
        ) from error


@contextmanager
def _naming_unusable_paths(args: argparse.Namespace) -> Iterator[None]:
    """Context in which an operating system's error about a path of the arguments is one message."""
    try:
        yield
    except OSError as error:
        path = (
            Path(os.fsdecode(error.filename)) if isinstance(error.filename, (str, bytes)) else None
        )
        argument_paths = [
            value.absolute() for value in vars(args).values() if isinstance(value, Path)
        ]
        if path is None or not any(
            path.is_relative_to(argument_path) or argument_path.is_relative_to(path)
            for argument_path in argument_paths
        ):
            raise
        raise GodwitError(
            f"{path} cannot be used: {error.strerror}.", remedy="Name another path.", path=str(path)
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
        with _naming_what_to_install(command), _naming_unusable_paths(args):
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

"""The command line, `godwit`: the composition root, where everything may meet everything.

Exit statuses: 0 done; 1 the answer is no (a checkpoint that is damaged, a demo that differs); 2 it
could not be done, as one message that says what to do; 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from godwit import __version__
from godwit.cli.checkpoint import add_checkpoint_command
from godwit.cli.demo.command import add_demo_command
from godwit.cli.plan import add_plan_command
from godwit.model.errors import GodwitError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main", "parser"]

_DESCRIPTION = """\
Godwit: elastic, stateful stream processing on Apache Spark, from Python. The state of a running
PySpark stream moves between executors while the stream flows.
"""
_EPILOG = """\
start here:
  godwit demo                          see a live migration and a recovery on your machine
  godwit checkpoint inspect PATH       what a query has committed, and how large it is
  godwit checkpoint verify PATH        whether a checkpoint is whole
  godwit plan schema example > p.json  a problem for the planners ...
  godwit plan compare p.json           ... and what each of them would do

Each command explains itself with --help. Streams themselves are started from Python: import godwit.
"""


def parser() -> argparse.ArgumentParser:
    """Build the parser of the whole command line."""
    made = argparse.ArgumentParser(
        prog="godwit",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--version", action="version", version=f"godwit {__version__}")
    made.add_argument(
        "--traceback", action="store_true", help="show where in the code an error comes from"
    )
    commands = made.add_subparsers(dest="command", metavar="COMMAND")
    add_demo_command(commands)
    add_checkpoint_command(commands)
    add_plan_command(commands)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Parameters
    ----------
    arguments
        Without the program's name; by default those of the process.
    """
    whole = parser()
    args = whole.parse_args(arguments)
    if args.command is None:
        whole.print_help()
        return 2
    try:
        status: int = args.run(args)
        # Here and not at exit, where a closed pipe could not be answered any more.
        sys.stdout.flush()
    except GodwitError as error:
        if args.traceback:
            raise
        print(f"godwit {args.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader has seen enough, as in `godwit ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


if __name__ == "__main__":
    sys.exit(main())

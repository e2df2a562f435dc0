"""`godwit ui` and `godwit report`: a run as a page, live or as one file, from its journal alone."""

from __future__ import annotations

import os
import secrets
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from godwit.model.errors import GodwitError
from godwit.model.text import human_bytes
from godwit.ops.arguments import (
    add_checkpoint,
    bounded,
    flow_name,
    no_journal_error,
    opened_checkpoint,
)
from godwit.ops.page.live_page import PageFeed, PageServer, is_loopback, report_page
from godwit.ops.page.view import report_of

if TYPE_CHECKING:
    import argparse

_VARIABLE: Final = "GODWIT_UI_TOKEN"


def add_ui_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the texts and arguments of `godwit ui`, and its function as ``run``."""
    parser.description = (
        "Serve a page that shows a stream while it runs, or a run that has ended: its "
        "graph, latency and decisions, executors and the load of key groups, migrations, rows left "
        "out, and every epoch that there was. Only the checkpoint is read, so it works "
        "from any machine that reaches it. /state/OPERATOR?key=... at the same port answers "
        "look-ups in the state. The page can be reached from this machine alone, unless --host "
        "says otherwise; then it needs a token, which is part of the address that is printed. "
        "Ctrl-C ends it."
    )
    add_checkpoint(parser)
    parser.add_argument(
        "--port",
        type=bounded(int, 0, 65535, "number of a port"),
        default=8090,
        help="default: %(default)s; 0: any that is free",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to open the port on (default: %(default)s)"
    )
    parser.add_argument(
        "--token",
        default=os.environ.get(_VARIABLE, ""),
        help=f"access token of readers (default: that of the environment variable {_VARIABLE}; "
        "made up where --host is not of this machine alone)",
    )
    parser.set_defaults(run=_run_ui)


def add_report_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the texts and arguments of `godwit report`, and its function as ``run``."""
    parser.description = (
        "Write the content of `godwit ui` to one file, which any browser opens without a server. "
        "Exit status 0; 2 if there is no checkpoint, or no journal yet."
    )
    add_checkpoint(parser)
    parser.add_argument("-o", "--output", default="run.html", help="default: %(default)s")
    parser.set_defaults(run=_run_report)


def _run_ui(args: argparse.Namespace) -> int:
    """Serve the page of a checkpoint until Ctrl-C; return the exit status."""
    storage = opened_checkpoint(args.path)
    token = args.token
    if not token and not is_loopback(args.host):
        token = secrets.token_urlsafe(24)
    server = PageServer(
        storage, flow=flow_name(storage), host=args.host, port=args.port, token=token
    )
    server.answer_from_checkpoint()
    try:
        print(f"The page of {args.path} is at {server.url} (Ctrl-C ends it)", flush=True)
        threading.Event().wait()
    except KeyboardInterrupt:
        pass  # how one leaves
    finally:
        server.close()
    return 0


def _run_report(args: argparse.Namespace) -> int:
    """Write the report of a checkpoint's run to a file; return the exit status."""
    storage = opened_checkpoint(args.path)
    feed = PageFeed(storage, flow=flow_name(storage))
    published = feed.look()
    if published.state.last_s is None:
        raise no_journal_error(args.path)
    page = report_page(report_of(published.state, flow=feed.flow, life=published.life))
    try:
        size = Path(args.output).write_text(page, encoding="utf-8")
    except OSError as error:
        raise GodwitError(
            f"The report cannot be written to {args.output!r}: {error.strerror}.",
            remedy="Give a file in a writable directory, as in -o run.html.",
            path=args.output,
        ) from error
    print(f"{args.output}: {len(published.state.points)} points in time, {human_bytes(size)}")
    return 0

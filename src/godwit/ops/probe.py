"""`godwit probe`: whether a query is alive or ready, for probes that run a command.

Asks a port of the query, or looks at a checkpoint from outside.
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from godwit.model.errors import GodwitError
from godwit.model.text import printable
from godwit.ops.arguments import bounded, opened_checkpoint
from godwit.ops.health import ANSWERS
from godwit.ops.status import status_of

if TYPE_CHECKING:
    import argparse

_TIMEOUT_S: Final = 10.0
_EPOCH_S: Final = 600.0


def add_probe_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the texts and arguments of `godwit probe`, and its function as ``run``."""
    parser.description = (
        "Check whether a query is alive (it runs, and no epoch takes too long) or ready (it has "
        "recovered or committed its first epoch, and is not too far behind). WHERE is the "
        "address of its metrics or of its live page, which answer /livez and /readyz themselves; "
        "or its checkpoint, from any machine that reaches it. Exit status: 0 yes; 1 no, with the "
        "reasons; 2 it could not be reached."
    )
    parser.add_argument("what", choices=[*ANSWERS.values()])
    parser.add_argument(
        "where", metavar="WHERE", help="such as http://127.0.0.1:9091, or a checkpoint"
    )
    parser.add_argument(
        "--max-epoch-s",
        type=bounded(float, 0, name="number of seconds"),
        default=_EPOCH_S,
        metavar="SECONDS",
        help="max. duration of an epoch (default: %(default)g)",
    )
    parser.add_argument(
        "--max-rows-behind",
        type=bounded(int, 0, name="number of rows"),
        metavar="ROWS",
        help="max. rows of the sources that no epoch has read yet, for `ready`",
    )
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """Print the reasons for failure, if any; return the exit status."""
    if args.where.startswith(("http://", "https://")):
        passed, text = _ask_query(args)
    else:
        reasons = _reasons_against(
            status_of(opened_checkpoint(args.where)),
            ready=args.what == "ready",
            max_epoch_s=args.max_epoch_s,
            max_rows_behind=args.max_rows_behind,
        )
        passed, text = not reasons, "; ".join(reasons)
    if not passed:
        print(printable(f"not {args.what}: {text}"), file=sys.stderr)
    return 0 if passed else 1


def _ask_query(args: argparse.Namespace) -> tuple[bool, str]:
    """Query a port; return whether the check passes, and the reasons for failure."""
    limits = {"max_epoch_s": args.max_epoch_s, "max_rows_behind": args.max_rows_behind}
    [path] = [path for path, what in ANSWERS.items() if what == args.what]
    query = urlencode({name: value for name, value in limits.items() if value is not None})
    url = f"{args.where.partition('?')[0].rstrip('/').removesuffix('/metrics')}{path}?{query}"
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310  http alone
            json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code != 503:
            raise _no_answer(url, error) from None
        queries = json.load(error)["queries"]
        reasons = [f"{name}: {r}" for name, values in queries.items() for r in values["reasons"]]
        return False, "; ".join(reasons) or "no query has started"
    except (OSError, ValueError) as error:
        raise _no_answer(url, error) from None
    return True, ""


def _no_answer(url: str, error: Exception) -> GodwitError:
    """Return the error that an address does not respond like a query's port."""
    return GodwitError(
        f"{url} does not respond like a query's port: {error}.",
        remedy="Start the query with gw.Observability(metrics_port=...) or ui_port=..., and give "
        "that address, as in http://127.0.0.1:9091.",
        url=url,
    )


def _reasons_against(
    status: dict[str, Any], *, ready: bool, max_epoch_s: float, max_rows_behind: int | None
) -> list[str]:
    """Return the reasons why a query is not alive, or not ready, by its status from outside."""
    behind, ago_s = status["rows_behind"], status["epoch_ended_s_ago"]
    reasons = []
    if status["state"] != "running":
        reasons.append(f"the query has {status['state']}" if status["reason"] else "no query runs")
    elif behind and ago_s is not None and ago_s > max_epoch_s:
        reasons.append(f"{behind:,} rows wait, and the last epoch ended {ago_s:.0f} s ago")
    if ready and status["epoch"] is None:
        reasons.append("no epoch is committed yet")
    if ready and max_rows_behind is not None and (behind is None or behind > max_rows_behind):
        reasons.append("its backlog is not known" if behind is None else f"{behind:,} rows behind")
    return reasons

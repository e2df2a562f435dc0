"""A mistake of a new user, what its answer has to say, and the grade of the answer.

The code is text, as a user writes it.  It may name what `namespace` gives.

An answer is **clear** if it says what is wrong, where (the argument, operator, column, file or
command), and what to do, and says it at once: before any epoch, unless only rows can tell.  It is
**usable** if it is the right error, and what to do is missing, or it comes late.  Anything else is
**bad**: nothing is said, an error of a library comes through, or the program waits.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import threading
import warnings
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pandas as pd
import pyarrow as pa

import godwit
from godwit.cli.main import main
from godwit.local import LocalRun

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

gw: Any = godwit
COLUMNS = "k string, v long, price double, ts timestamp"
ROW = {"k": "a", "v": 1, "price": 1.5, "ts": "2024-05-01 08:00"}
_CODE = "<mistake>"
_RUN_EPOCH = LocalRun._run_epoch


@dataclass(frozen=True, slots=True)
class Mistake:
    """Code, and what its answer has to say."""

    code: str
    what: str  # words of the message: what is wrong
    where: str  # words of the message: where
    fix: str  # words of the remedy: what to do
    by_rows: bool = False  # only rows can tell
    usable: bool = False  # its answer is no more than usable


@dataclass(frozen=True, slots=True)
class Answer:
    """What a user gets for a mistake."""

    message: str
    remedy: str
    late: bool  # an epoch has run before


class CommandEndedError(Exception):
    """A command of the command line has ended; its text is what it printed."""


def grade(mistake: Mistake, answer: Answer | str) -> str:
    """Return ``"clear"``, ``"usable"``, or ``"bad: ..."`` with the answer."""
    if isinstance(answer, str):
        return f"bad: {answer}"
    said = f"{answer.message} {answer.remedy}"
    if not (mistake.what in answer.message and mistake.where in answer.message):
        return f"bad: {said}"
    if answer.late and not mistake.by_rows:
        return f"usable: it comes late: {said}"
    return "clear" if mistake.fix in answer.remedy else f"usable: no {mistake.fix!r} in {said}"


def answer_to(mistake: Mistake, names: Mapping[str, Any]) -> Answer | str:
    """Run the code of a mistake; text if it is answered by nothing, or by another library."""
    code = mistake.code + "\n"
    # A function's source is looked at for what it does to its state.
    linecache.cache[_CODE] = (len(code), None, code.splitlines(keepends=True), _CODE)
    epochs: list[object] = []

    def counted(run: LocalRun, source: Any) -> Any:
        outcome = _RUN_EPOCH(run, source)
        epochs.append(outcome)
        return outcome

    try:
        with (
            mock.patch.object(LocalRun, "_run_epoch", counted),
            warnings.catch_warnings(action="error", category=UserWarning),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            exec(compile(code, _CODE, "exec"), dict(names))
    except godwit.errors.GodwitError as error:
        return Answer(error.message, error.remedy or "", late=bool(epochs))
    except (UserWarning, CommandEndedError) as ended:
        return Answer(str(ended), str(ended), late=False)
    except Exception as error:  # noqa: BLE001  whatever a user would see
        return f"{type(error).__name__}: {error}"
    finally:
        del linecache.cache[_CODE]
    return "nothing was said"


def command(*arguments: object) -> None:
    """Run the command line; raise `CommandEndedError` if it refuses."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            status: object = main([str(argument) for argument in arguments])
        except SystemExit as exited:
            status = exited.code
    if status == 2:
        raise CommandEndedError(said.getvalue())


def namespace(here: Path) -> dict[str, Any]:
    """Return what the code of a mistake may name; `here`: an empty directory.

    A flow with a source of `COLUMNS`, its stream by no key and by `k`, and calls that explain,
    play and start flows.
    """
    flow = gw.Flow("shop")
    rows = flow.source("orders", gw.testing.stream(COLUMNS), event_time="ts", slack="1 minute")
    keyed = rows.key_by("k")

    def explain(stream: Any, sink: Any = None) -> None:
        """Explain a flow with this stream as its result."""
        of = stream._flow if hasattr(stream, "_flow") else flow
        of.sink("out", stream, gw.sinks.noop() if sink is None else sink)
        of.explain()

    def play(stream: Any) -> None:
        """Play a flow with this stream as its result."""
        flow.sink("out", stream, gw.sinks.noop())
        gw.testing.run(flow, {"orders": [ROW, ROW]}, close_at_end=True)

    def process(function: Callable[..., Any], **options: Any) -> None:
        """Play a flow with a function per key."""
        options = {"state": int, "output": "k string, n long", **options}
        play(keyed.process(function, **options))

    def counts(name: str = "shop") -> Any:
        """Return a flow that counts rows of two columns."""
        small = gw.Flow(name)
        by_key = small.source("orders", gw.testing.stream("k string, v long")).key_by("k")
        small.sink("out", by_key.compute(name="counts", n=gw.count()), gw.sinks.noop())
        return small

    def start(*arguments: Any, **options: Any) -> None:
        """Start a flow over a source of Godwit's own."""
        small = gw.Flow("shop")
        by_key = small.source("orders", gw.sources.memory("k string")).key_by("k")
        small.sink("out", by_key.compute(n=gw.count()), gw.sinks.noop())
        small.start(*arguments, **options)

    def read(source: Any, sink: Any = None, **options: Any) -> None:
        """Count the rows of a source of Godwit's own."""
        small = gw.Flow("shop")
        by_key = small.source("orders", source).key_by(source.schema.names[0])
        sink = gw.sinks.noop() if sink is None else sink
        small.sink("out", by_key.compute(n=gw.count()), sink)
        small.explain()
        gw.testing.run(small, **options)

    def written() -> str:
        """Return the directory of a checkpoint of `counts`."""
        with mock.patch.object(LocalRun, "_run_epoch", _RUN_EPOCH):  # not one of the mistake's
            gw.testing.run(counts(), {"orders": [{"k": "a", "v": 1}]}, checkpoint=here / "ck")
        return str(here / "ck")

    def resume(changed: Any) -> None:
        """Resume that checkpoint with another flow."""
        gw.testing.run(changed, {"orders": [{"k": "a", "v": 1}]}, checkpoint=written())

    def file(name: str, text: str) -> str:
        """Write a file, and return its directory."""
        path = here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path.parent)

    calls = (explain, play, process, counts, start, read, written, resume, file)
    return {
        **{call.__name__: call for call in calls},
        "gw": gw,
        "np": np,
        "pd": pd,
        "pa": pa,
        "datetime": datetime,
        "threading": threading,
        "flow": flow,
        "orders": rows,
        "keyed": keyed,
        "here": str(here),
        "godwit": command,
        "stream": gw.testing.stream,
        "ROW": ROW,
    }

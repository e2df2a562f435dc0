"""Log records as lines of JSON: keys, context, errors, and who writes them."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import godwit as gw
from godwit.model.errors import InvalidFlowError
from godwit.model.log_lines import (
    LogLine,
    chosen_format,
    log_context,
    name_queries,
)
from godwit.model.secrets import Secrets
from godwit.runtime.query import _only_query

if TYPE_CHECKING:
    from collections.abc import Iterator


class Lines(logging.Handler):
    """Keeps lines of JSON as values."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(LogLine())
        self.values: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        assert "\n" not in line
        self.values.append(json.loads(line))


@pytest.fixture
def lines() -> Iterator[Lines]:
    lines, logger = Lines(), logging.getLogger("godwit")
    logger.addHandler(lines)
    yield lines
    logger.removeHandler(lines)


def test_a_line_has_the_context_of_its_thread_and_no_other(lines: Lines) -> None:
    logger = logging.getLogger("godwit")
    with log_context(query="delays", epoch=7):
        with log_context(phase="commit"):
            logger.warning("%d rows\nare late", 3)
        other = threading.Thread(target=logger.warning, args=("elsewhere",))
        other.start()
        other.join()
    logger.warning("afterwards")
    first, second, third = lines.values
    assert first["message"] == "3 rows\nare late"
    assert (first["query"], first["epoch"], first["phase"]) == ("delays", 7, "commit")
    assert (first["level"], first["logger"]) == ("WARNING", "godwit")
    assert first["time"].endswith("Z")
    assert not {"epoch", "phase"} & ({*second} | {*third})


def test_a_thread_without_context_gets_the_only_query_of_the_process(lines: Lines) -> None:
    name_queries(lambda: "delays")
    try:
        logging.getLogger("godwit").warning("from anywhere")
    finally:
        name_queries(_only_query)
    assert lines.values[0]["query"] == "delays"


def test_an_error_has_its_traceback_in_the_line_and_no_secret(lines: Lines) -> None:
    Secrets.of_uri("postgresql://me:open-sesame-1@host/db")
    try:
        Path("/open-sesame-1").read_text()
    except OSError:
        logging.getLogger("godwit").exception("it failed")
    error = lines.values[0]["error"]
    assert "read_text()" in error["traceback"]
    assert "open-sesame-1" not in json.dumps(lines.values)


def test_a_function_in_a_lane_logs_with_epoch_lane_and_phase(lines: Lines) -> None:
    def count(key: Any, rows: Any, seen: dict[str, int]) -> Any:
        logging.getLogger("godwit.mine").warning("a key")
        yield key[0], len(list(rows))

    flow = gw.Flow("logged")
    keyed = flow.source("rows", gw.sources.memory("k long")).key_by("k")
    flow.sink(
        "out", keyed.process(count, name="c", state=dict, output="k long, n long"), gw.sinks.noop()
    )
    gw.testing.run(flow, {"rows": [{"k": 1}]})
    [line] = [values for values in lines.values if values["logger"] == "godwit.mine"]
    assert (line["epoch"], line["phase"], line["lane"]) == (0, "lane", 0)
    logging.getLogger("godwit").warning("afterwards")
    assert not {"epoch", "phase", "lane"} & {*lines.values[-1]}


def test_an_unknown_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidFlowError, match="setting log of observability is 'xml'"):
        gw.Observability(log="xml")
    monkeypatch.setenv("GODWIT_LOG", "logfmt")
    with pytest.raises(InvalidFlowError, match="variable GODWIT_LOG is 'logfmt'"):
        chosen_format()
    monkeypatch.setenv("GODWIT_LOG", "")
    assert chosen_format() is None
    assert chosen_format("json") == "json"


def test_a_supervised_program_and_its_supervisor_log_lines_alone(tmp_path: Path) -> None:
    program = tmp_path / "app.py"
    program.write_text(
        "import logging, threading, warnings\n"
        "logging.getLogger('mine').warning('begun')\n"
        "warnings.warn('careful')\n"
        "thread = threading.Thread(target=lambda: 1 / 0)\n"
        "thread.start(); thread.join()\n"
        "raise OSError('no\\nmore')\n"
    )
    command = [sys.executable, "-m", "godwit.cli.main", "run", "--log", "json", "--restarts", "0"]
    ended = subprocess.run([*command, str(program)], capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    mine, warned, thread, failed, supervisor = lines
    assert (mine["logger"], mine["message"]) == ("mine", "begun")
    assert "careful" in warned["message"]
    assert thread["error"]["type"] == "ZeroDivisionError"
    assert failed["message"] == "OSError: no"
    assert 'app.py", line 6' in failed["error"]["traceback"]
    assert supervisor["logger"] == "godwit.run"
    assert "it is not restarted" in supervisor["message"]

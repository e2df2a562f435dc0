"""Lives a history: writes input, starts drivers, and does to them and the broker what is told.

The driver runs in a process of its own.
"""

from __future__ import annotations

import multiprocessing
import random
import shutil
import signal
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tests.chaos.kafka.driver import drive
from tests.chaos.kafka.inputs import PATIENCE_S, Files, Input, Messages
from tests.chaos.kafka.oracle import problems

from godwit.cli.main import main as godwit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.chaos.kafka.histories import History
    from tests.kafka_broker import KafkaBroker

__all__ = ["Driver", "LocalDriver", "live"]

_SERVICE = multiprocessing.get_context("forkserver")
_SERVICE.set_forkserver_preload(["tests.chaos.kafka.driver", "deltalake", "pandas", "psycopg"])


class Driver(Protocol):
    """Port to a driver's processes.

    `parts` can be killed by themselves: ``"lane"``, ``"executor"``.
    """

    parts: tuple[str, ...]

    def start(self, told: dict[str, Any]) -> None:
        """Start it, and wait until it runs."""

    def status(self) -> int | None:
        """Return how it ended; ``None`` while it runs."""

    def kill(self) -> None:
        """Let it die at once."""

    def kill_part(self, part: str) -> bool:
        """Kill one of `parts`; return whether there is one."""


class LocalDriver:
    """A driver without Spark, in one process."""

    parts: tuple[str, ...] = ()
    _process: Any = None

    def start(self, told: dict[str, Any]) -> None:
        """See `Driver.start`."""
        self._process = _SERVICE.Process(target=drive, args=(told,))
        self._process.start()

    def status(self) -> int | None:
        """See `Driver.status`."""
        code: int | None = self._process.exitcode
        return code

    def kill(self) -> None:
        """See `Driver.kill`."""
        if self._process is not None:
            self._process.kill()
            self._process.join()

    def kill_part(self, part: str) -> bool:
        """See `Driver.kill_part`."""
        raise NotImplementedError


def live(
    history: History, directory: Path, broker: KafkaBroker, dsn: str | None, driver: Driver
) -> list[str]:
    """Live a history in an empty directory; return what went wrong."""
    source, topic = _input_of(history, directory, broker)
    told = {
        "directory": str(directory),
        "servers": broker.servers,
        "topic": topic,
        "group": f"{topic}-monitor" if topic else None,
        "limit": history.limit,
        "outputs": history.outputs,
        "rejects": history.rejects,
        "lane_files": history.lane_files,
        "dsn": dsn,
        "targets": {
            name: broker.topic(2) if target == "kafka" else f"{name}_{history.seed}"
            for name, target in {**history.outputs, "rejects": history.rejects}.items()
        },
    }
    for number, of_round in enumerate(history.rounds):
        last = number == len(history.rounds) - 1
        if last:
            source.end_all()
        wrong = _round({**told, **of_round, "number": number, "end": last}, broker, source, driver)
        if wrong is not None:
            return [f"round {number}, {of_round}: {wrong}"]
        if of_round["deed"] == "finish" and not source.open:
            source.era += 1  # whatever comes now is later than all that was read
            found = [*problems(broker, told, source.contents(), ended=last)]
            if found:
                return [f"round {number}: {one}" for one in found]
    shutil.rmtree(directory / "local", ignore_errors=True)
    whole = godwit(["checkpoint", "verify", str(directory / "ck")]) == 0
    return [] if whole else ["the checkpoint is not whole"]


def _input_of(history: History, directory: Path, broker: KafkaBroker) -> tuple[Input, str]:
    """Make what the flow reads, and the name of its topic; empty if it reads files."""
    rng = random.Random(history.seed)
    if history.source == "files":
        (directory / "in").mkdir()
        return Files(rng=rng, directory=directory / "in"), ""
    topic = broker.topic(history.partitions)
    return Messages(rng=rng, broker=broker, topic=topic, partitions=history.partitions), topic


def _round(told: dict[str, Any], broker: KafkaBroker, source: Input, driver: Driver) -> str | None:
    """Live a round; say why it did not end as it was to."""
    for name in ("ready", "finish"):
        (Path(told["directory"]) / name).unlink(missing_ok=True)
    if told["partitions"]:
        source.add_partitions(told["partitions"])
    with _cutting(broker, told["cuts"]):
        driver.start(told)
        with _other_member(broker, told["group"] if told["meddles"] else None):
            return _driven(told, broker, source, driver)


def _driven(told: dict[str, Any], broker: KafkaBroker, source: Input, driver: Driver) -> str | None:
    ready = Path(told["directory"]) / "ready"
    putting = threading.Thread(target=_put_all, args=(source, told["puts"]))
    if not _until(lambda: ready.exists() or driver.status() is not None):
        return "the driver does not start"
    putting.start()
    try:
        wrong = _deed(told, broker, source, driver, putting)
    finally:
        putting.join(PATIENCE_S)
    return wrong or ("rows cannot be put" if putting.is_alive() else None)


def _put_all(source: Input, puts: list[tuple[str, int]]) -> None:
    for kind, rows in puts:
        source.put(kind, rows)
        time.sleep(source.rng.uniform(0.0, 0.1))


def _deed(
    told: dict[str, Any],
    broker: KafkaBroker,
    source: Input,
    driver: Driver,
    putting: threading.Thread,
) -> str | None:
    """Do the deed, and see the driver end; say if it ends otherwise than it was to."""
    match told["deed"]:
        case "kill":
            time.sleep(told["after_s"])
            return _killed(driver)
        case "kill at":
            putting.join(PATIENCE_S)
            _put_until(lambda: driver.status() is not None, source)
            died = Path(told["directory"]) / f"died-{told['number']}"
            return _killed(driver) or (None if died.exists() else "the driver did not get there")
        case "halt broker" | "restart broker":
            time.sleep(told["after_s"])
            with _without(told, broker, source):
                time.sleep(told["for_s"])
            if told["then"] == "kill":
                return _killed(driver)
        case "kill lane" | "kill executor" as deed:
            time.sleep(told["after_s"])
            part = deed.removeprefix("kill ")
            if not _put_until(
                lambda: driver.status() is not None or driver.kill_part(part), source
            ):
                return f"the driver has no {part}"
    putting.join(PATIENCE_S)
    (Path(told["directory"]) / "finish").touch()
    if not _until(lambda: driver.status() is not None):
        driver.kill()
        return "the driver does not finish"
    status = driver.status()
    return None if status == 0 else f"the driver ended with status {status}"


def _put_until(met: Callable[[], bool], source: Input) -> bool:
    """Put rows until something is met, which may take some epochs; return whether it is."""

    def met_after_a_row() -> bool:
        if met():
            return True
        source.put("end", 0)  # an open transaction holds back what comes after it
        source.put("plain", 1)
        time.sleep(0.1)
        return False

    return _until(met_after_a_row)


def _killed(driver: Driver) -> str | None:
    """Kill a driver, unless it has died by itself; else say how it ended."""
    if driver.status() is None:
        driver.kill()
    status = driver.status()
    return None if status == -signal.SIGKILL else f"the driver ended with status {status}"


@contextmanager
def _cutting(broker: KafkaBroker, cuts: list[dict[str, Any]]) -> Iterator[None]:
    """Have the connections of drivers cut."""
    server = broker.server
    assert server is not None, "the relay before the tests' own broker cuts them"
    for cut in cuts:
        server.relay.cut(**cut, broker_pid=broker.pid)
    try:
        yield
    finally:
        server.relay.forget_cuts()


@contextmanager
def _without(told: dict[str, Any], broker: KafkaBroker, source: Input) -> Iterator[None]:
    """Let the broker stand still, or be down, for a while.

    The broker of the tests loses what it has acknowledged in the last second where it is killed,
    and transactions that are open where it is ended, of which it takes the commit anyway
    (`tests.chaos.kafka.broker_losses` shows it). So it is restarted only where nobody has one, and
    stands still otherwise. That it seems to die at a request of a transaction, and comes back with
    all that it has acknowledged, is the relay's doing (`_cutting`).
    """
    server = broker.server
    assert server is not None, "a cluster that is not the tests' own is left alone"
    writes = "kafka" in (*told["outputs"].values(), told["rejects"])
    if writes or told["deed"] == "halt broker":
        server.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            server.signal(signal.SIGCONT)
        return
    with source.writing:
        source.end_all()
        server.end(signal.SIGTERM)
        try:
            yield
        finally:
            server.start()


@contextmanager
def _other_member(broker: KafkaBroker, group: str | None) -> Iterator[None]:
    """Let someone else join and leave the group that offsets are reported to."""
    if group is None:
        yield
        return
    from confluent_kafka import Consumer

    over = threading.Event()

    def join() -> None:
        while not over.is_set():
            member = Consumer({"bootstrap.servers": broker.servers, "group.id": group})
            member.subscribe([group.removesuffix("-monitor")])
            for _ in range(5):
                with suppress(Exception):
                    member.poll(0.1)
            member.close()

    thread = threading.Thread(target=join, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(PATIENCE_S)


def _until(met: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not met():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True

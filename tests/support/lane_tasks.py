"""Tasks of lanes that are threads, and answer as a test says."""

from __future__ import annotations

import pickle
import socket
import threading
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

from godwit.engine.lane.messages import LaneReport, Place
from godwit.spark.resident.channel import ChannelError, connect
from godwit.spark.resident.lane_task import Endpoint, LaneAnswer, Work
from godwit.spark.resident.lanes import SlotShares

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from godwit.spark.resident.lanes import QuerySlots

PATIENCE_S = 120.0
TWO = tuple((f"local-{i}", 0) for i in range(2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """As much of an instruction as the driver's side looks at."""

    epoch: int = 0
    places: tuple[Place, ...] = TWO
    levels: int = 1
    operators: tuple[Any, ...] = ()


@dataclass(slots=True, kw_only=True)
class Threads:
    """Tasks that are threads, and answer as they are told."""

    answers: Callable[[int, Work], LaneAnswer]
    host: str = "127.0.0.1"
    executor_of: Callable[[Place], str] = itemgetter(0)
    missing: frozenset[int] = frozenset()  # numbers of tasks that never come
    endpoint: Endpoint | None = None
    cancelled: bool = False
    waiting_tasks: int = 0  # of other jobs
    released: threading.Event = field(default_factory=threading.Event)

    def listen(self) -> socket.socket:
        return socket.create_server((self.host, 0))

    def run(self, lane: Callable[[int], Iterator[bytes]], places: Sequence[Place]) -> None:
        self.endpoint = cast("Any", lane).__closure__[0].cell_contents
        assert isinstance(self.endpoint, Endpoint)
        tasks = [
            threading.Thread(target=self._task, args=(self.endpoint, number, place))
            for number, place in enumerate(places)
            if number not in self.missing
        ]
        for task in tasks:
            task.start()
        if len(tasks) < len(places):
            self.released.wait(PATIENCE_S)
        for task in tasks:
            task.join()

    def _task(self, endpoint: Endpoint, number: int, place: Place) -> None:
        try:
            channel = connect(endpoint.address, endpoint.secret, number, handshake_s=5)
        except ChannelError:
            return  # another lane has ended them all meanwhile
        try:
            channel.send(pickle.dumps((self.executor_of(place), number)))
            while True:
                works = pickle.loads(channel.receive())
                channel.send(pickle.dumps([self.answers(number, work) for work in works]))
        except ChannelError:
            channel.close()

    def waiting(self) -> int:
        return self.waiting_tasks

    def cancel(self) -> None:
        self.cancelled = True
        self.released.set()


def slots(
    number: int = 4, shares: SlotShares | None = None, now_s: Callable[[], float] = lambda: 0.0
) -> QuerySlots:
    """Make the slots of a query in a session of one process."""
    return (shares or SlotShares()).join(lambda _: ("", number), now_s)


def reported(work: Work) -> LaneReport:
    """Report the payloads that came to a lane, as hexadecimal text instead of its executor."""
    payloads = " ".join(payload.hex() for payload in work.payloads)
    return LaneReport(level=work.level, place=work.place, executor=payloads)


def answer(work: Work, **values: Any) -> LaneAnswer:
    known: dict[str, Any] = {
        "attempt": work.attempt,
        "level": work.level,
        "place": work.place,
        "blobs": [],
        "report": reported(work).dumps(),
    }
    return LaneAnswer(**{**known, **values})


def row(level: int) -> bytes:
    """Make as much of a payload as the driver looks at: the level that it is for."""
    return bytes([1, level, 0, 0])

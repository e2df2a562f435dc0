"""A relay before the tests' broker: fetches wait for messages there, and connections can be cut.

``noida-db`` answers a fetch of nothing at once, whatever ``max_wait_ms`` says, so an idle consumer
would ask it ten thousand times a second. The relay keeps such an answer and asks again: after
requests that may have made messages visible, and now and then for what the broker does by itself.
So consumers wait as they do at any broker of Kafka's, and take as little of a core.

A connection's requests are passed on at once, except behind a fetch: a broker answers a connection
in turn. While the broker is away, connections are refused and those that are open close, as without
a relay; it outlives restarts of the broker, and ends when its input does.

``python kafka_relay.py BROKER_PORT`` prints the port that it listens at. Then every line of input
is a command, answered by a line (`Relay.command`).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
import sys
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["APIS", "bytes_of_records", "fetch_limits"]

APIS: Final = {
    "Produce": 0,
    "Fetch": 1,
    "ListOffsets": 2,
    "OffsetFetch": 9,
    "InitProducerId": 22,
    "AddPartitionsToTxn": 24,
    "AddOffsetsToTxn": 25,
    "EndTxn": 26,
    "TxnOffsetCommit": 28,
}
"""Requests that can be cut off, by their names."""
_FETCH: Final = APIS["Fetch"]
_SHOWS: Final = frozenset({APIS["Produce"], APIS["InitProducerId"], APIS["EndTxn"]})
"""Requests after which readers may see more; a new producer ends what the one before left open."""
_ADDRESSES: Final = frozenset({3, 10, 60})
"""Metadata, FindCoordinator, DescribeCluster: their answers name the broker's port."""
_AGAIN_S: Final = 0.002  # between two questions, at least
_SELDOM_S: Final = 0.1  # where nobody has written: transactions time out at the broker too
_HOST: Final = "127.0.0.1"


class _Fields:
    """Reads the fields of a message one after another."""

    def __init__(self, frame: bytes, at: int, *, flexible: bool) -> None:
        self._frame, self._at, self._flexible = frame, at, flexible

    def number(self, size: int) -> int:
        self._at += size
        return int.from_bytes(self._frame[self._at - size : self._at], "big", signed=True)

    def skip(self, size: int) -> None:
        self._at += size

    def length(self, size: int = 4) -> int:
        """Length of an array, of bytes, or a text (``size=2``); -1 if there is none."""
        return self._varint() - 1 if self._flexible else self.number(size)

    def tags(self) -> None:
        """Skip tagged fields, where there may be some."""
        if self._flexible:
            for _ in range(self._varint()):
                self._varint()
                self.skip(self._varint())

    def _varint(self) -> int:
        number = shift = 0
        while True:
            byte = self._frame[self._at]
            self._at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number


def fetch_limits(request: bytes) -> tuple[float, int]:
    """Return how long a fetch may wait, in seconds, and for how many bytes."""
    version = struct.unpack_from(">h", request, 6)[0]
    fields = _Fields(request, 12, flexible=version >= 12)
    fields.skip(max(0, fields.number(2)))  # the client's name is never of the compact form
    fields.tags()
    if version < 15:
        fields.skip(4)  # the replica that asks
    return fields.number(4) / 1e3, fields.number(4)


def bytes_of_records(answer: bytes, version: int) -> int | None:
    """Count the bytes of records, of data or control, in a fetch's answer; `None`: an error."""
    fields = _Fields(answer, 8, flexible=version >= 12)
    fields.tags()
    if version >= 1:
        fields.skip(4)
    if version >= 7:
        if fields.number(2):
            return None
        fields.skip(4)
    total = 0
    for _ in range(fields.length()):
        fields.skip(16 if version >= 13 else fields.length(2))
        for _ in range(fields.length()):
            fields.skip(4)
            if fields.number(2):
                return None
            fields.skip(8 + 8 * (version >= 4) + 8 * (version >= 5))
            if version >= 4:
                for _ in range(fields.length()):
                    fields.skip(16)
                    fields.tags()
            if version >= 11:
                fields.skip(4)
            records = max(0, fields.length())
            fields.skip(records)
            total += records
            fields.tags()
        fields.tags()
    return total


@dataclass(slots=True)
class _Fetch:
    """A fetch that is under way."""

    request: bytes
    correlation: int
    version: int
    min_bytes: int
    until_s: float
    asked_s: float = 0.0  # the last time
    shown: int = 0  # `Relay.shown` then
    answer: bytes | None = None  # of nothing; None while the broker is asked
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True)
class _Cut:
    """A request, or its answer, by which a connection is cut."""

    api: int
    client: str
    skip: int = 0  # requests that pass before it
    # By the answer: the broker has carried the request out, and the client does not hear of it.
    answer: bool = False
    down_s: float = 0.0  # for so long nobody reaches the broker; 0: one connection is lost
    halt_s: float = 0.0  # nothing is cut: the broker stands still for so long, at this moment
    broker_pid: int = 0


class _End(asyncio.Protocol):
    """One end of a link: gives frames on; holds the other end back while it cannot take more."""

    other: _End
    transport: Any = None

    def __init__(self, on_frame: Callable[[bytes], None], on_lost: Callable[[], None]) -> None:
        self._on_frame, self._on_lost = on_frame, on_lost
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) >= start + 4:
            end = start + 4 + int.from_bytes(buffer[start : start + 4], "big")
            if len(buffer) < end:
                break
            self._on_frame(bytes(buffer[start:end]))
            start = end
        del buffer[:start]

    def pause_writing(self) -> None:
        if self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._on_lost()


class _Link:
    """A client's connection, and its own to the broker."""

    def __init__(self, relay: Relay) -> None:
        self._relay, self._loop = relay, relay.loop
        self.client = _End(self._requested, self.close)
        self._broker = _End(self._answered, self.close)
        self.client.other, self._broker.other = self._broker, self.client
        self._waiting: deque[bytes] = deque()  # requests, until there is a connection, or an answer
        self._apis: dict[int, int] = {}  # correlation → api, of requests under way
        self._fetch: _Fetch | None = None
        self._cuts: dict[int, _Cut] = {}  # correlation → what its answer is cut by
        self._connected = self._closed = False
        self._connecting = relay.loop.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            await self._loop.create_connection(lambda: self._broker, *self._relay.broker)
        except OSError:
            self.close()
            return
        self._connected = True
        if self._closed:
            self._broker.transport.abort()
        self._pass_on()

    def close(self, *, at_once: bool = False) -> None:
        """Close both ends: after what was written, unless it is to be lost."""
        if self._closed:
            return
        self._closed = True
        self._relay.links.discard(self)
        self._end_fetch()
        for end in (self.client, self._broker):
            if end.transport is not None:
                (end.transport.abort if at_once else end.transport.close)()

    def _requested(self, frame: bytes) -> None:
        self._waiting.append(frame)
        self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting and self._connected and not self._closed and self._fetch is None:
            self._send(self._waiting.popleft())

    def _send(self, frame: bytes) -> None:
        api, version, correlation = struct.unpack_from(">hhi", frame, 4)
        cut = self._relay.cut_of(api, frame)
        if cut is not None:
            if cut.answer:
                self._cuts[correlation] = cut
            elif self._relay.cut(self, cut):
                return
        if api == _FETCH:
            wait_s, min_bytes = fetch_limits(frame)
            self._fetch = _Fetch(
                request=frame,
                correlation=correlation,
                version=version,
                min_bytes=min_bytes,
                until_s=self._loop.time() + wait_s,
            )
            self._ask(self._fetch)
            return
        self._apis[correlation] = api
        self._broker.transport.write(frame)

    def _answered(self, frame: bytes) -> None:
        correlation = int.from_bytes(frame[4:8], "big", signed=True)
        if self._closed:
            return
        cut = self._cuts.pop(correlation, None)
        if cut is not None and self._relay.cut(self, cut):
            return
        fetch = self._fetch
        if fetch is not None and fetch.correlation == correlation:
            size = bytes_of_records(frame, fetch.version)
            if size is None or size >= fetch.min_bytes or self._loop.time() >= fetch.until_s:
                self._give(frame)
            else:
                fetch.answer = frame
                self._wait(fetch)
            return
        api = self._apis.pop(correlation, None)
        if api in _ADDRESSES:
            frame = self._relay.under_its_address(frame)
        self.client.transport.write(frame)
        if api in _SHOWS:
            self._relay.has_shown()

    # Fetches

    def _ask(self, fetch: _Fetch) -> None:
        fetch.asked_s, fetch.shown, fetch.answer = self._loop.time(), self._relay.shown, None
        self._broker.transport.write(fetch.request)

    def _wait(self, fetch: _Fetch) -> None:
        """Wait until it is of use to ask again."""
        pause_s = _SELDOM_S if fetch.shown == self._relay.shown else _AGAIN_S
        at_s = min(fetch.asked_s + pause_s, fetch.until_s)
        fetch.timer = self._loop.call_at(at_s, self._again, fetch)

    def _again(self, fetch: _Fetch) -> None:
        fetch.timer = None
        if fetch.answer is not None and self._loop.time() >= fetch.until_s:
            self._give(fetch.answer)
        else:
            self._ask(fetch)

    def _give(self, answer: bytes) -> None:
        self._end_fetch()
        self.client.transport.write(answer)
        self._pass_on()

    def _end_fetch(self) -> None:
        if self._fetch is not None and self._fetch.timer is not None:
            self._fetch.timer.cancel()
        self._fetch = None

    def look_again(self) -> None:
        """Ask again soon, if a fetch waits: there may be messages for it."""
        fetch = self._fetch
        if fetch is not None and fetch.timer is not None:
            fetch.timer.cancel()
            self._wait(fetch)


class Relay:
    """Listens while the broker is there, and links every client with it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, broker_port: int) -> None:
        self.loop, self.broker = loop, (_HOST, broker_port)
        self.links: set[_Link] = set()
        self.shown = 0  # times that messages may have become visible
        self._cuts: list[_Cut] = []
        self._num_cuts = 0
        self._server: asyncio.Server | None = None
        self._there = self._down = False
        self._listening: asyncio.Task[None] | None = None
        # Bound for as long as the relay lives: nobody else gets its port while it does not listen.
        self._holder = self._bound(0)
        self.port: int = self._holder.getsockname()[1]
        self._addresses = [
            _HOST.encode() + struct.pack(">i", port) for port in (broker_port, self.port)
        ]

    async def run(self) -> None:
        """Watch the broker by a connection of the relay's own."""
        while True:
            lost = asyncio.Event()
            watching = partial(_End, lambda _: None, lost.set)
            try:
                watch, _ = await self.loop.create_connection(watching, *self.broker)
                if watch.get_extra_info("sockname") == watch.get_extra_info("peername"):
                    watch.abort()  # a connection to itself: nobody listens there
                    raise ConnectionRefusedError
            except OSError:
                self._there = False
                self._refuse()
                await asyncio.sleep(0.02)
                continue
            self._there = True
            await self._listen()
            await lost.wait()

    def _bound(self, port: int) -> socket.socket:
        # asyncio switches Nagle's algorithm off where the protocol is named.
        bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((_HOST, port))
        return bound

    async def _listen(self) -> None:
        if self._server is None and self._there and not self._down:
            self._server = await self.loop.create_server(self._accept, sock=self._bound(self.port))

    def _accept(self) -> _End:
        link = _Link(self)
        self.links.add(link)
        return link.client

    def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def under_its_address(self, answer: bytes) -> bytes:
        """Name the relay's port where an answer names the broker's, which is as long."""
        broker, ours = self._addresses
        return answer.replace(broker, ours)

    def has_shown(self) -> None:
        """Let fetches that wait look again."""
        self.shown += 1
        for link in self.links:
            link.look_again()

    # Cuts

    def command(self, told: dict[str, Any]) -> dict[str, Any]:
        """Carry out a command: ``cut`` is a further cut, or null: none of those to come."""
        if "cut" in told:
            if told["cut"] is None:
                self._cuts.clear()
            else:
                self._cuts.append(_Cut(**told["cut"]))
        return {"cuts": self._num_cuts}

    def cut_of(self, api: int, frame: bytes) -> _Cut | None:
        """Return what a request is cut by, if it is its turn."""
        if not self._cuts:
            return None
        client = frame[14 : 14 + max(0, struct.unpack_from(">h", frame, 12)[0])].decode()
        for cut in self._cuts:
            if (cut.api, cut.client) == (api, client):
                cut.skip -= 1
                if cut.skip < 0:
                    self._cuts.remove(cut)
                    return cut
        return None

    def cut(self, link: _Link, cut: _Cut) -> bool:
        """Let a connection be lost, or the broker seem to be down; false if it stands still."""
        self._num_cuts += 1
        if cut.halt_s:
            with suppress(ProcessLookupError):  # someone has ended it
                os.killpg(cut.broker_pid, signal.SIGSTOP)
                self.loop.call_later(cut.halt_s, self._go_on, cut.broker_pid)
            return False
        if not cut.down_s:
            link.close(at_once=True)
            return True
        self._down = True
        self._refuse()
        for each in list(self.links):
            each.close(at_once=True)
        self.loop.call_later(cut.down_s, self._is_up)
        return True

    def _go_on(self, broker_pid: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(broker_pid, signal.SIGCONT)

    def _is_up(self) -> None:
        self._down = False
        self._listening = self.loop.create_task(self._listen())


async def main(broker_port: int) -> None:
    """Relay until the input ends."""
    loop = asyncio.get_running_loop()
    relay = Relay(loop, broker_port)
    print(relay.port, flush=True)  # noqa: T201  this and what follows is read by a program
    running = loop.create_task(relay.run())
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():
        print(json.dumps(relay.command(json.loads(line))), flush=True)  # noqa: T201
    running.cancel()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))

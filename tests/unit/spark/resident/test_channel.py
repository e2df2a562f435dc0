"""Nothing gets through a channel that the other end has not written, in this order and once."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from godwit.spark.resident.channel import (
    Channel,
    ChannelError,
    accept,
    connect,
    new_secret,
)
from godwit.spark.resident.lane_task import Endpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_S = 120.0


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_S)
        yield server


def joined(listener: socket.socket, secret: bytes, theirs: bytes) -> tuple[Channel, int, Channel]:
    """Connect a lane that knows `theirs` to a driver whose secret is `secret`."""
    with ThreadPoolExecutor(1) as lanes:
        lane = lanes.submit(connect, listener.getsockname()[:2], theirs, 3, handshake_s=PATIENCE_S)
        connection, _ = listener.accept()
        try:
            driver, number = accept(
                connection, secret, handshake_s=PATIENCE_S, timeout_s=PATIENCE_S
            )
        except ChannelError:
            connection.close()
            with pytest.raises(ChannelError):
                lane.result(PATIENCE_S)
            raise
        return driver, number, lane.result(PATIENCE_S)


@pytest.fixture
def ends(listener: socket.socket) -> Iterator[tuple[Channel, Channel]]:
    secret = new_secret()
    driver, number, lane = joined(listener, secret, secret)
    assert number == 3
    yield driver, lane
    driver.close()
    lane.close()


def test_frames_of_any_size_arrive_as_they_were_sent(ends: tuple[Channel, Channel]) -> None:
    driver, lane = ends
    frames = [b"", b"x", bytes(range(256)) * 40, bytes(3_000_000)]
    sender = threading.Thread(target=lambda: deque(map(driver.send, frames), 0))
    sender.start()
    assert [lane.receive() for _ in frames] == frames
    sender.join()
    lane.send(b"back")
    assert driver.receive() == b"back"


def test_a_lane_that_does_not_know_the_secret_is_turned_away(listener: socket.socket) -> None:
    with pytest.raises(ChannelError, match="does not know the secret"):
        joined(listener, new_secret(), new_secret())


def test_a_driver_that_does_not_know_the_secret_gets_nothing_from_a_lane(
    listener: socket.socket,
) -> None:
    with ThreadPoolExecutor(1) as lanes:
        lane = lanes.submit(
            connect, listener.getsockname()[:2], new_secret(), 0, handshake_s=PATIENCE_S
        )
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"godwit-lane\x00\x01" + bytes(32))
            connection.recv(100)
            connection.sendall(bytes(32))
            with pytest.raises(ChannelError, match="does not know the secret"):
                lane.result(PATIENCE_S)


def test_a_service_of_another_protocol_is_no_driver(listener: socket.socket) -> None:
    with ThreadPoolExecutor(1) as lanes:
        lane = lanes.submit(
            connect, listener.getsockname()[:2], new_secret(), 0, handshake_s=PATIENCE_S
        )
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n" + bytes(40))
            with pytest.raises(ChannelError, match="another protocol"):
                lane.result(PATIENCE_S)


def test_whoever_connects_and_says_nothing_is_waited_for_no_longer_than_stated(
    listener: socket.socket,
) -> None:
    with socket.create_connection(listener.getsockname()[:2]):
        connection, _ = listener.accept()
        with connection, pytest.raises(ChannelError, match="no answer in time"):
            accept(connection, new_secret(), handshake_s=0.05, timeout_s=1.0)


@pytest.mark.parametrize("forgery", ["changed", "repeated", "reflected", "huge"])
def test_a_frame_that_the_other_end_did_not_write_now_is_refused(
    ends: tuple[Channel, Channel], forgery: str
) -> None:
    driver, lane = ends
    wire = Wire()
    genuine, driver._socket = driver._socket, wire  # type: ignore[assignment]
    driver.send(b"a frame of rows")
    driver._socket = genuine
    frame = bytes(wire.written)
    if forgery == "changed":
        genuine.sendall(frame[:-1] + bytes([frame[-1] ^ 1]))
    elif forgery == "huge":
        genuine.sendall(b"\xff" * 8 + frame[8:])
    elif forgery == "repeated":
        genuine.sendall(frame + frame)
        assert lane.receive() == b"a frame of rows"
    else:
        lane._socket.sendall(frame)
        with pytest.raises(ChannelError, match="not authentic"):
            driver.receive()
        return
    with pytest.raises(ChannelError, match=r"not authentic|was announced"):
        lane.receive()


class Wire:
    """Takes down what is sent."""

    def __init__(self) -> None:
        self.written = bytearray()

    def settimeout(self, _seconds: float | None) -> None: ...

    def sendall(self, data: bytes) -> None:
        self.written += data


def until_it_speaks(end: Channel) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        end.check_silent()


def test_an_end_that_speaks_unasked_or_is_gone_is_noticed_before_anything_is_sent(
    ends: tuple[Channel, Channel],
) -> None:
    driver, lane = ends
    driver.check_silent()
    lane.send(b"late")
    with pytest.raises(ChannelError, match="without being asked"):
        until_it_speaks(driver)
    assert driver.receive() == b"late"
    lane.close()
    with pytest.raises(ChannelError, match=r"is gone|has broken"):
        until_it_speaks(driver)
    with pytest.raises(ChannelError, match=r"closed|broken"):
        driver.receive()


def test_the_secret_of_a_job_is_not_shown() -> None:
    secret = new_secret()
    shown = repr(Endpoint(address=("127.0.0.1", 7), secret=secret))
    assert repr(secret) not in shown
    assert secret.hex() not in shown
    assert len(secret) == 32

"""Channels between the driver and resident lanes, on which no third party can write.

The problem: received bytes are unpickled, so a writer could run any code on the driver and on
executors.  The invariants: both ends prove by an HMAC over each other's nonce that they know the
job's secret, which is made for one job and travels with its tasks alone; and every frame has an
HMAC over its number and its contents, by a key of this channel and direction.  So nothing is
unpickled that the other end has not written, in this order and once.

Frames are authenticated, not encrypted: rows can be read by tapping the network.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import struct
import time
from contextlib import suppress
from typing import Final

_MAGIC: Final = b"godwit-lane\x00\x01"
_NONCE = _PROOF = 32
_NUMBER: Final = struct.Struct(">I")
_HEAD: Final = struct.Struct(">Q")
_FRAME_AT_MOST: Final = 2**31
_JOINED_AT_MOST: Final = 2**18  # larger frames are sent in two pieces, and not copied


class ChannelError(ConnectionError):
    """The other end is gone, does not answer in time, or is not the one it says it is."""


def new_secret() -> bytes:
    """Return a random secret of 256 bits, by which the lanes of one job are authenticated."""
    return secrets.token_bytes(32)


class Channel:
    """An authentic connection, on which frames of bytes go both ways; used by one thread."""

    def __init__(
        self,
        connection: socket.socket,
        *,
        send_key: bytes,
        receive_key: bytes,
        timeout_s: float | None,  # for sending a frame, and for the rest of one that has begun
    ) -> None:
        self._socket, self._timeout_s = connection, timeout_s
        self._send_key, self._receive_key = send_key, receive_key
        self._sent = self._received = 0

    def fileno(self) -> int:
        """Return the socket's descriptor, for ``select``; -1 once it is closed."""
        return self._socket.fileno()

    def send(self, frame: bytes) -> None:
        """Send a frame of bytes; raise `ChannelError` if the peer has closed or does not read."""
        head = _HEAD.pack(len(frame)) + _frame_tag(self._send_key, self._sent, frame)
        self._sent += 1
        try:
            self._socket.settimeout(self._timeout_s)
            if len(frame) <= _JOINED_AT_MOST:
                self._socket.sendall(head + frame)
            else:
                self._socket.sendall(head)
                self._socket.sendall(frame)
        except OSError as error:
            raise ChannelError(f"it does not read ({_error_text(error)})") from error

    def receive(self) -> bytes:
        """Wait for a frame, without time limit, and return it.

        Raises `ChannelError` if the peer is gone, or the frame is not authentic.
        """
        head = _read(self._socket, _HEAD.size + _PROOF, None)
        (size,) = _HEAD.unpack_from(head)
        if size > _FRAME_AT_MOST:
            raise ChannelError(f"a frame of {size} bytes was announced")
        deadline = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        frame = _read(self._socket, size, deadline)
        tag = _frame_tag(self._receive_key, self._received, frame)
        if not hmac.compare_digest(tag, head[_HEAD.size :]):
            raise ChannelError("a frame is not authentic")
        self._received += 1
        return frame

    def check_silent(self) -> None:
        """Raise `ChannelError` if unexpected data has arrived, or the peer has closed."""
        try:
            self._socket.settimeout(0)
            ahead = self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError as error:
            raise ChannelError(f"the connection has broken ({_error_text(error)})") from error
        raise ChannelError("it spoke without being asked" if ahead else "it is gone")

    def close(self) -> None:
        """Close the connection, which the peer notices."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def accept(
    connection: socket.socket, secret: bytes, *, handshake_s: float, timeout_s: float
) -> tuple[Channel, int]:
    """Authenticate a connection that a lane has opened; return the channel and the lane's number.

    Raises `ChannelError` if the peer does not know the secret, or the handshake takes longer than
    `handshake_s`. `timeout_s`: limit of each `Channel.send`.
    """
    deadline = time.monotonic() + handshake_s
    own_nonce = secrets.token_bytes(_NONCE)
    _write(connection, _MAGIC + own_nonce, deadline)
    answer = _read(connection, _NONCE + _NUMBER.size + _PROOF, deadline)
    lane_nonce, number, proof = (
        answer[:_NONCE],
        answer[_NONCE : _NONCE + _NUMBER.size],
        answer[-_PROOF:],
    )
    if not hmac.compare_digest(
        proof, _handshake_proof(secret, b"lane", own_nonce, lane_nonce, number)
    ):
        raise ChannelError("it does not know the secret of the job")
    _write(connection, _handshake_proof(secret, b"driver", own_nonce, lane_nonce, number), deadline)
    channel = Channel(
        _configure_socket(connection),
        send_key=_handshake_proof(secret, b"to lane", own_nonce, lane_nonce, number),
        receive_key=_handshake_proof(secret, b"to driver", own_nonce, lane_nonce, number),
        timeout_s=timeout_s,
    )
    return channel, _NUMBER.unpack(number)[0]


def connect(address: tuple[str, int], secret: bytes, lane: int, *, handshake_s: float) -> Channel:
    """Connect lane `lane` to the driver, and return the authenticated channel.

    Raises `ChannelError` if there is no answer within `handshake_s`, or the peer is not the driver.
    """
    deadline = time.monotonic() + handshake_s
    try:
        connection = socket.create_connection(address, handshake_s)
    except OSError as error:
        raise ChannelError(f"no answer at {address[0]}:{address[1]} ({error})") from error
    try:
        first = _read(connection, len(_MAGIC) + _NONCE, deadline)
        if first[: len(_MAGIC)] != _MAGIC:
            raise ChannelError("it speaks another protocol")  # noqa: TRY301
        driver_nonce, own_nonce, number = (
            first[len(_MAGIC) :],
            secrets.token_bytes(_NONCE),
            _NUMBER.pack(lane),
        )
        proof = _handshake_proof(secret, b"lane", driver_nonce, own_nonce, number)
        _write(connection, own_nonce + number + proof, deadline)
        expected = _handshake_proof(secret, b"driver", driver_nonce, own_nonce, number)
        if not hmac.compare_digest(_read(connection, _PROOF, deadline), expected):
            raise ChannelError("it does not know the secret of the job")  # noqa: TRY301
    except ChannelError:
        connection.close()
        raise
    return Channel(
        _configure_socket(connection),
        send_key=_handshake_proof(secret, b"to driver", driver_nonce, own_nonce, number),
        receive_key=_handshake_proof(secret, b"to lane", driver_nonce, own_nonce, number),
        timeout_s=None,  # a driver that stands still is waited for
    )


def _handshake_proof(
    secret: bytes, role: bytes, driver: bytes, lane: bytes, number: bytes
) -> bytes:
    """Return the HMAC over role, both nonces and the lane number, which proves the secret is known.

    `driver`, `lane`: nonces.
    """
    return hmac.digest(secret, role + b"\x00" + driver + lane + number, hashlib.sha256)


def _frame_tag(key: bytes, number: int, frame: bytes) -> bytes:
    """Return the HMAC over a frame and its number, which proves its author and its position."""
    tag = hmac.new(key, _HEAD.pack(number), hashlib.sha256)
    tag.update(frame)
    return tag.digest()


def _configure_socket(connection: socket.socket) -> socket.socket:
    """Set a socket to send without delay, and to detect a vanished peer; return it."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    connection.settimeout(None)
    return connection


def _write(connection: socket.socket, data: bytes, deadline: float) -> None:
    """Write all bytes before a deadline; raise `ChannelError` if that fails."""
    try:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        connection.sendall(data)
    except OSError as error:
        raise ChannelError(f"it does not read ({_error_text(error)})") from error


def _read(connection: socket.socket, size: int, deadline: float | None) -> bytes:
    """Read exactly `size` bytes by a monotonic `deadline` (``None``: no limit); raise otherwise."""
    data = bytearray(size)
    view, position = memoryview(data), 0
    try:
        while position < size:
            left = None if deadline is None else max(deadline - time.monotonic(), 0.001)
            connection.settimeout(left)
            count = connection.recv_into(view[position:])
            if count == 0:
                raise ChannelError("it has closed the connection")  # noqa: TRY301
            position += count
    except ChannelError:
        raise
    except OSError as error:
        raise ChannelError(f"the connection has broken ({_error_text(error)})") from error
    return bytes(data)


def _error_text(error: OSError) -> str:
    """Return a socket's error as text for messages."""
    return "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)

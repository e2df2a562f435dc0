"""Requests to an object store: one per call, counted by kind.

Problem: object stores charge for each request, and a file system over one hides requests.
``pyarrow.fs`` writes an object of any size by three, reads one by two, deletes one by three, and
has no conditional put.  So S3, Google Cloud Storage and Azure are reached by another client,
`obstore`_, where it is installed.

Invariant: a call of `ObjectStore` sends the requests that it counts, and no others, unless the
store fails and the client repeats them.

A count belongs to a context (`counting_requests`), such as that of an epoch, or else to the store:
what runs beside epochs (lease, journal, collection) is on threads of its own.

.. _obstore: https://developmentseed.org/obstore/
"""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Literal, Self
from urllib.parse import parse_qsl, unquote, urlsplit
from uuid import uuid4

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RequestKind = Literal["get", "put", "list", "head", "delete"]
"""Kind of a request; a part of an upload, its begin and its end are ``"put"``."""

PART_BYTES: Final = 16 * 2**20
"""Maximum size of an object that is written by one request, and of the parts of larger ones."""

_SCHEMES: Final = frozenset({"s3", "gs", "gcs", "abfs", "abfss"})
_PAGE: Final = 1000
"""Number of names in an answer to a listing."""
_PARTS_AT_ONCE: Final = 4
_CREATIONS: Final = 3
"""Maximum number of attempts to create an object, of which the store says that it both is there
and is not, because of a conflict with another request."""
_TIMEOUT: Final = "120 seconds"


class RequestCounts:
    """Number of requests by kind; threads may add to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, kind: RequestKind, count: int = 1) -> None:
        """Count requests."""
        with self._lock:
            self._counts[kind] += count

    def taken(self) -> dict[str, int]:
        """Return kind → number of requests since the last call."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return dict(counts)


_COUNTS: ContextVar[RequestCounts | None] = ContextVar("godwit_requests", default=None)


@contextmanager
def counting_requests() -> Iterator[RequestCounts]:
    """Context whose requests are counted apart."""
    counts = RequestCounts()
    before = _COUNTS.set(counts)
    try:
        yield counts
    finally:
        _COUNTS.reset(before)


class StoreIgnoresConditionError(Exception):
    """The store creates an object that exists, although it was asked not to."""


class ObjectStore:
    """Objects under the prefix of one location; `store`: of ``obstore``.

    Raises `FileNotFoundError`, and `OSError` if the store fails.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        self._is_probed = False
        self.requests = RequestCounts()  # outside of any `counting_requests`

    def _count_requests(self, kind: RequestKind, count: int = 1) -> None:
        """Add requests to the counts of the present context, or else to those of the store."""
        (_COUNTS.get() or self.requests).add(kind, count)

    def create(self, path: str, data: bytes) -> None:
        """Create an object; raise `FileExistsError` if it exists.

        Before the first one, the store has to refuse one of two creations of the same name: some
        stores that speak S3 accept the condition and ignore it. Raises
        `StoreIgnoresConditionError` then.
        """
        if not self._is_probed:
            self._check_conditional_puts()
            self._is_probed = True
        if not self._try_create(path, data):
            raise FileExistsError(path)

    def create_unconditionally(self, path: str, data: bytes) -> None:
        """Create an object; raise `FileExistsError` if it exists, unless others create it now."""
        if self.size(path) is not None:
            raise FileExistsError(path)
        self.put(path, data)

    def _check_conditional_puts(self) -> None:
        """Raise if the store ignores conditional puts: two writers can create one object."""
        path = f"claims/probe-{uuid4().hex}"
        first, second = self._try_create(path, b"1"), self._try_create(path, b"2")
        self.delete(path)
        if not first or second:
            raise StoreIgnoresConditionError

    def _try_create(self, path: str, data: bytes) -> bool:
        """Create an object; return ``False`` if it exists."""
        errors = import_module("obstore.exceptions")
        refused: Exception | None = None
        for _ in range(_CREATIONS):
            self._count_requests("put")
            with _store_errors():
                try:
                    self._store.put(path, data, mode="create")
                except (errors.AlreadyExistsError, errors.PreconditionError) as error:
                    refused = error
                else:
                    return True
                # The store may have carried out a request whose answer was lost; our
                # content is unique.
                self._count_requests("get")
                with suppress(FileNotFoundError):  # a conflict with another request
                    return bytes(self._store.get(path).bytes()) == data
        msg = f"the store refused {_CREATIONS} times to create a file that does not exist"
        raise OSError(msg) from refused

    def put(self, path: str, data: bytes) -> None:
        """Create or replace an object."""
        content = pa.py_buffer(data)

        def is_complete(_size_bytes: int) -> bool:
            """Return whether this content is there, and not a former one."""
            return bool(self.get(path, 0, None).equals(content))

        with self._open_writer(path, is_complete) as writer:
            writer.write(data)

    def open_writer(self, path: str) -> ObjectWriter:
        """Return a writer of an object of a new name, which exists once the writer is closed."""
        return self._open_writer(path, lambda size_bytes: self.size(path) == size_bytes)

    def _open_writer(self, path: str, is_complete: Callable[[int], bool]) -> ObjectWriter:
        """Return a writer of an object; `is_complete`: see `ObjectWriter`."""
        with _store_errors():
            writer = import_module("obstore").open_writer(
                self._store, path, buffer_size=PART_BYTES, max_concurrency=_PARTS_AT_ONCE
            )
        return ObjectWriter(writer, self._count_requests, is_complete)

    def get(self, path: str, offset: int, length: int | None) -> pa.Buffer:
        """Read `length` bytes of an object from `offset` on, or up to its end.

        Fewer if the object has fewer.
        """
        errors = import_module("obstore.exceptions")
        self._count_requests("get")
        with _store_errors():
            try:
                if length:
                    data = self._store.get_range(path, start=offset, length=length)
                elif offset or length is not None:
                    data = self._store.get(path, options={"range": {"offset": offset}}).bytes()
                else:
                    data = self._store.get(path).bytes()
            except errors.BaseError:
                # Stores refuse ranges that begin at the end of the object, or after it.
                size = self.size(path)
                if size is None or offset < size:
                    raise
                return pa.py_buffer(b"")
        return _aligned_buffer(data if length is None else memoryview(data)[:length])

    def size(self, path: str) -> int | None:
        """Return the size of an object in bytes; ``None`` if there is none."""
        self._count_requests("head")
        try:
            with _store_errors():
                return int(self._store.head(path)["size"])
        except FileNotFoundError:
            return None

    def list(self, directory: str) -> dict[str, int]:
        """Return path → size in bytes of the objects directly in a directory."""
        prefix = f"{directory}/" if directory else ""
        try:
            page = self._list_objects(directory)
        except OSError:
            # The client repeats no request whose answer was cut.
            self._count_requests("list")
            page = self._list_objects(directory)
        entries = len(page["objects"]) + len(page["common_prefixes"])
        self._count_requests("list", max(1, -(-entries // _PAGE)))
        sizes = {str(entry["path"]): int(entry["size"]) for entry in page["objects"]}
        # An object named as a directory is a mark of a file system that it exists.
        return {path: n for path, n in sizes.items() if path.startswith(prefix) and path != prefix}

    def _list_objects(self, directory: str) -> Any:
        """Return the client's answer to a listing."""
        with _store_errors():
            return self._store.list_with_delimiter(directory or None)

    def delete(self, path: str) -> None:
        """Delete an object; raise `FileNotFoundError` if the store says that there is none."""
        self._count_requests("delete")
        with _store_errors():
            self._store.delete(path)


class ObjectWriter:
    """Writes an object, in parts if it is large.

    `count`: counts requests. `is_complete`: returns whether the present object is all that was
    written, of a size in bytes.
    """

    def __init__(
        self,
        writer: Any,
        count: Callable[[RequestKind, int], None],
        is_complete: Callable[[int], bool],
    ) -> None:
        self._writer, self._count_requests, self._is_complete = writer, count, is_complete
        self._size_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()

    def write(self, data: Any) -> None:
        """Append bytes; full parts are sent."""
        view = memoryview(data).cast("B")
        with _store_errors():
            self._writer.write(view)
        self._size_bytes += len(view)

    def close(self) -> None:
        """Complete the object."""
        whole = self._size_bytes < PART_BYTES
        self._count_requests("put", 1 if whole else 2 + -(-self._size_bytes // PART_BYTES))
        try:
            with _store_errors():
                self._writer.close()
        except OSError:
            # A store that has completed an upload, and whose answer was lost, knows it no more.
            complete = False
            with suppress(OSError):  # which would hide why the upload failed
                complete = not whole and self._is_complete(self._size_bytes)
            if not complete:
                raise


@contextmanager
def _store_errors() -> Iterator[None]:
    """Context that raises errors of the client as `OSError`."""
    try:
        yield
    except import_module("obstore.exceptions").BaseError as error:
        raise OSError(str(error).partition("\n")[0]) from error


def _aligned_buffer(data: Any) -> pa.Buffer:
    """Return bytes as a buffer in memory of Arrow's, which is aligned as Arrow's readers expect."""
    received = np.frombuffer(data, np.uint8)
    buffer = pa.allocate_buffer(len(received))
    np.frombuffer(buffer, np.uint8)[:] = received
    return buffer


def open_object_store(uri: str) -> ObjectStore | None:
    """Return the object store at `uri`; ``None`` if its client is not installed, or is for others.

    Raises `OSError` if the client cannot open the location.
    """
    text = re.sub(r"^gcs://", "gs://", re.sub(r"^s3[an]://", "s3://", uri))
    if urlsplit(text).scheme not in _SCHEMES or find_spec("obstore") is None:
        return None
    return ObjectStore(_shared_client(text, os.getpid()))


@cache
def _shared_client(uri: str, _process: int) -> Any:
    """Return the client for a location: one in a process, since it has connections and threads."""
    parts = urlsplit(uri)
    host = parts.netloc.rpartition("@")[2] if parts.scheme == "s3" else parts.netloc
    config, client = _store_settings(parts.scheme, dict(parse_qsl(parts.query)))
    if parts.scheme == "s3" and parts.username:
        config["access_key_id"] = unquote(parts.username)
        config["secret_access_key"] = unquote(parts.password or "")
    from_url = import_module("obstore.store").from_url
    try:
        return from_url(
            f"{parts.scheme}://{host}{parts.path}", config=config, client_options=client
        )
    except (ValueError, import_module("obstore.exceptions").BaseError) as error:
        msg = f"its client cannot open this location: {error}"
        raise OSError(msg) from None


def _store_settings(scheme: str, options: dict[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Translate the parameters (`options`) of an Arrow URI.

    Returns the settings of the object store, and the settings of its client.
    """
    config: dict[str, Any] = {}
    client: dict[str, Any] = {"timeout": _TIMEOUT}
    if scheme != "s3":
        return config, client
    config["disable_bulk_delete"] = True  # one DELETE is understood by more stores
    if "region" in options:
        config["region"] = options["region"]
    if "endpoint_override" in options:
        protocol = options.get("scheme", "https")
        config["endpoint"] = f"{protocol}://{options['endpoint_override']}"
        client["allow_http"] = protocol == "http"
        config["virtual_hosted_style_request"] = options.get("force_virtual_addressing") == "true"
    return config, client

"""A store that speaks as much S3 as a checkpoint needs, on this machine."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from itertools import count
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedIOBase

__all__ = ["s3_store"]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    objects: dict[str, bytes]
    parts: dict[str, dict[int, bytes]]  # upload → number → bytes
    uploads: Iterator[int]
    lock: threading.Lock
    faults: list[tuple[str, str]]

    def do_PUT(self) -> None:
        body = self._body()
        if self._fault("conflict"):
            self._answer(409, _error("ConditionalRequestConflict"))
            return
        query = parse_qs(urlsplit(self.path).query)
        if "partNumber" in query:
            number = int(query["partNumber"][0])
            self.parts.setdefault(query["uploadId"][0], {})[number] = body
            self._answer(200, b"", ETag='"1"')
            return
        with self.lock:
            if self.headers.get("If-None-Match") == "*" and self._key in self.objects:
                self._answer(412, _error("PreconditionFailed"))
                return
            self.objects[self._key] = body
        self._answer(200, b"", ETag='"1"')

    def do_POST(self) -> None:
        self._body()
        query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        if "uploads" in query:
            upload = f"<UploadId>{next(self.uploads)}</UploadId>"
            answer = f"<InitiateMultipartUploadResult>{upload}</InitiateMultipartUploadResult>"
        else:
            parts = self.parts.pop(query["uploadId"][0], None)
            if parts is None:
                self._answer(404, _error("NoSuchUpload"))
                return
            self.objects[self._key] = b"".join(parts[number] for number in sorted(parts))
            answer = "<CompleteMultipartUploadResult><ETag>1</ETag></CompleteMultipartUploadResult>"
        self._answer(200, answer.encode())

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if "list-type" in query:
            self._answer(200, self._listed(query))
        elif self._key in self.objects:
            data = self.objects[self._key]
            asked = self.headers.get("Range")
            if asked is None:
                self._answer(200, data, ETag='"1"')
                return
            first, _, last = asked.removeprefix("bytes=").partition("-")
            part = data[int(first) : int(last) + 1 if last else None]
            span = f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"
            self._answer(206, part, ETag='"1"', **{"Content-Range": span})
        else:
            self._answer(404, _error("NoSuchKey"))

    def do_HEAD(self) -> None:
        found = self.objects.get(self._key)
        self.send_response(404 if found is None else 200)
        self.send_header("Content-Length", str(len(found or b"")))
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Fri, 01 Jan 2021 00:00:00 GMT")
        self.end_headers()

    def do_DELETE(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if "uploadId" in query:
            self.parts.pop(query["uploadId"][0], None)
        else:
            self.objects.pop(self._key, None)
        self._answer(204, b"")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  its name
        pass

    @property
    def _key(self) -> str:
        return unquote(urlsplit(self.path).path)

    def _body(self) -> bytes:
        if "Content-Length" in self.headers:
            raw = self.rfile.read(int(self.headers["Content-Length"]))
        else:
            raw = b"".join(self._chunks(self.rfile))
        if "aws-chunked" in self.headers.get("Content-Encoding", ""):
            return b"".join(self._chunks(BytesIO(raw)))
        return raw

    def _chunks(self, file: BufferedIOBase) -> Iterator[bytes]:
        """Read what is sent as chunks, each behind its length, up to an empty one."""
        while size := int(file.readline().split(b";")[0], 16):
            yield file.read(size)
            file.readline()
        while file.readline().strip():  # trailing headers
            pass

    def _listed(self, query: dict[str, list[str]]) -> bytes:
        prefix = query.get("prefix", [""])[0]
        bucket = self._key.rstrip("/")
        keys = sorted(k.removeprefix(f"{bucket}/") for k in self.objects)
        found = [k for k in keys if k.startswith(prefix)]
        if query.get("delimiter"):
            found = [k for k in found if "/" not in k.removeprefix(prefix)]
        contents = "".join(
            f"<Contents><Key>{escape(k)}</Key><Size>{len(self.objects[f'{bucket}/{k}'])}</Size>"
            f"<LastModified>2021-01-01T00:00:00.000Z</LastModified></Contents>"
            for k in found
        )
        return (
            f"<ListBucketResult><IsTruncated>false</IsTruncated><KeyCount>{len(found)}</KeyCount>"
            f"{contents}</ListBucketResult>"
        ).encode()

    def _fault(self, kind: str) -> bool:
        """Return whether this request has a fault of a kind, which comes once."""
        request = f"{self.command} {self.path}"
        for fault in self.faults:
            if fault[0] == kind and all(part in request for part in fault[1].split("*")):
                self.faults.remove(fault)
                return True
        return False

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.close_connection = lost = self._fault("lost")
        if lost:
            return
        if body and self._fault("cut"):
            headers["Content-Length"], body = str(len(body)), body[:-3]
            self.close_connection = True
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Fri, 01 Jan 2021 00:00:00 GMT")
        self.end_headers()
        self.wfile.write(body)


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code></Error>".encode()


@contextmanager
def s3_store(faults: list[tuple[str, str]] | None = None) -> Iterator[str]:
    """Serve an empty bucket; gives the URI of a checkpoint in it.

    `faults`: pairs of a kind and a pattern; each comes once, at the first request that it matches:
    ``"lost"`` and ``"cut"`` answers of requests that are carried out, and a ``"conflict"`` (409).
    """
    held = {"objects": {}, "parts": {}, "uploads": count(), "lock": threading.Lock()}
    handler = type("Handler", (_Handler,), {**held, "faults": [] if faults is None else faults})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        place = f"127.0.0.1:{server.server_address[1]}"
        try:
            yield f"s3://key:secret@bucket/ck?region=us-east-1&scheme=http&endpoint_override={place}"
        finally:
            server.shutdown()
            thread.join()

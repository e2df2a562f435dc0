"""The server of the live page: who may read what, and that nobody who reads costs much."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.checkpoints import write_checkpoint
from tests.support.journal_story import BEGAN_S, epoch, event, load, story, write

from godwit.model import events
from godwit.model.errors import InvalidFlowError
from godwit.ops import server
from godwit.ops.page import live_page
from godwit.ops.page.live_page import PageFeed, PageServer, Published, report_page
from godwit.ops.page.view import report_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from godwit.checkpoint.storage import CheckpointStorage

TOKEN = "a-token_of-20-letters"
HOSTILE = '</script><script>document.title="owned"</script><img src=x onerror=alert(1)>'


@pytest.fixture
def checkpoint(tmp_path: Path) -> CheckpointStorage:
    return write(write_checkpoint(tmp_path / "ck", name="delays", epochs=1), story())


@contextmanager
def served(storage: CheckpointStorage, **options: Any) -> Iterator[int]:
    how = {"flow": "delays", "host": "127.0.0.1", "port": 0, **options}
    server = PageServer(storage, **how)
    try:
        yield int(server.url.partition("?")[0].rsplit(":", 1)[1].strip("/"))
    finally:
        server.close()


def ask(
    port: int, path: str, *, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("other", ['csrf={"a":1}', "weird[]=1", "a b=c"])
def test_cookies_of_pages_at_other_ports_do_not_hide_the_token(
    checkpoint: CheckpointStorage, other: str
) -> None:
    with served(checkpoint, token=TOKEN) as port:
        assert ask(port, "/", Cookie=f"{other}; godwit_{port}={TOKEN}")[0] == 200


def test_loads_over_more_epochs_than_there_can_be_do_not_end_the_page(
    checkpoint: CheckpointStorage,
) -> None:
    summed = load(2, [8.0, 1.0])
    summed["load"]["epochs"] = 10**400
    write(checkpoint, [*story(), summed])
    assert PageFeed(checkpoint, flow="delays").look().sections["heat"]["components"]


class Reader:
    """Reads a stream of server-sent events."""

    def __init__(self, port: int, **headers: str) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.connection.request("GET", "/feed", headers=headers)
        self.answer = self.connection.getresponse()

    def next(self) -> dict[str, Any]:
        while True:
            line = self.answer.readline().decode()
            assert line, "the stream has ended"
            if line.startswith("data: "):
                values: dict[str, Any] = json.loads(line.removeprefix("data: "))
                return values

    def close(self) -> None:
        self.answer.close()
        self.connection.close()


def test_a_page_is_three_files_with_a_strict_policy(checkpoint: CheckpointStorage) -> None:
    with served(checkpoint) as port:
        for path, kind in (("/", "html"), ("/page.css", "css"), ("/page.js", "javascript")):
            status, headers, body = ask(port, path)
            assert status == 200
            assert kind in headers["Content-Type"]
            policy = headers["Content-Security-Policy"]
            assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
            assert "unsafe" not in policy
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert "http://" not in body.replace("http://www.w3.org/2000/svg", "")
            assert "https://" not in body


def test_nothing_else_of_the_machine_can_be_read(checkpoint: CheckpointStorage) -> None:
    with served(checkpoint) as port:
        for path in (
            *("/../page.html", "/page.html", "/..%2f..%2fetc/passwd", "//etc/passwd", "/page/"),
            *("/%2e%2e/report.py", "/feed/", "/identity.rec", "/journal/000000000000.rec"),
        ):
            assert ask(port, path)[0] == 404
        for query in ("", "?epoch=-1", "?epoch=1e3", "?epoch=%D9%A1", "?epoch=1&epoch=2"):
            assert ask(port, f"/frame{query}")[0] == 400
        assert ask(port, "/frame?epoch=" + "9" * 30)[0] == 400
        for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
            assert ask(port, "/", method=method)[0] == 405


def test_a_page_of_the_web_cannot_read_it_under_a_name_of_its_own(
    checkpoint: CheckpointStorage,
) -> None:
    with served(checkpoint) as port:
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "[::1", ""):
            assert ask(port, "/feed", Host=host)[0] == 403
        for host in ("localhost", f"127.0.0.1:{port}", "[::1]:80"):
            assert ask(port, "/", Host=host)[0] == 200


def test_a_port_with_a_token_answers_only_whoever_brings_it(checkpoint: CheckpointStorage) -> None:
    with served(checkpoint, token=TOKEN) as port:
        for path in ("/", "/feed", "/frame?epoch=1", "/report", "/page.js"):
            assert ask(port, path)[0] == 401
            assert ask(port, path, Cookie=f"godwit_{port}=wrong")[0] == 401
        assert ask(port, "/?token=wrong")[0] == 401
        assert ask(port, "/?token=%0d%0aSet-Cookie:x")[0] == 401
        status, headers, _ = ask(port, f"/?token={TOKEN}")
        assert (status, headers["Location"]) == (303, "/")
        cookie = headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Lax" in cookie
        assert ask(port, "/", Cookie=cookie.partition(";")[0])[0] == 200
        assert ask(port, "/", Cookie=cookie.partition(";")[0], Host="a.machine")[0] == 200
        assert ask(port, f"/frame?epoch=1&token={TOKEN}")[0] == 200
        assert ask(port, "/frame?epoch=1", Authorization=f"Bearer {TOKEN}")[0] == 200
        assert ask(port, "/frame?epoch=1", Authorization=f"Basic {TOKEN}")[0] == 401


def test_others_reach_it_only_with_a_token(checkpoint: CheckpointStorage) -> None:
    with pytest.raises(InvalidFlowError, match="but no token"):
        PageServer(checkpoint, flow="delays", host="0.0.0.0", port=0)
    with pytest.raises(InvalidFlowError, match="12 to 128 letters"):
        PageServer(checkpoint, flow="delays", host="127.0.0.1", port=0, token="a; Path=/")


def test_a_taken_port_is_refused_by_name(checkpoint: CheckpointStorage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidFlowError, match="the port is in use"):
            PageServer(checkpoint, flow="delays", host="127.0.0.1", port=port)


def test_a_reader_gets_all_there_is_and_then_what_changed(checkpoint: CheckpointStorage) -> None:
    with served(checkpoint) as port:
        reader = Reader(port)
        first = reader.next()
        assert first["run"]["state"] == "stopped"
        assert first["now"]["epoch"] == 5
        assert first["series"]["columns"]["epoch"] == [0, 1, 2, 3, 4, 5]
        write(checkpoint, [epoch(6, rows=4)])
        more = reader.next()
        assert more["series"]["columns"]["epoch"] == [5, 6]
        assert more["now"]["rowsIn"] == 4
        assert not more.keys() & {"graph", "heat", "decisions", "movements", "events"}
        reader.close()


def test_a_frame_of_an_earlier_epoch_can_be_asked_for(checkpoint: CheckpointStorage) -> None:
    with served(checkpoint) as port:
        reader = Reader(port)
        reader.next()
        frame = json.loads(ask(port, "/frame?epoch=3")[2])
        assert (frame["now"]["epoch"], frame["now"]["inFlight"]) == (3, 2)
        assert frame["heat"]["components"][0]["rows"][0]["keyGroups"] == 2
        reader.close()


def test_a_slow_reader_holds_nobody_up_and_nothing_is_kept_for_it(
    checkpoint: CheckpointStorage,
) -> None:
    with served(checkpoint) as port:
        slow = Reader(port)  # takes nothing more
        reader = Reader(port)
        assert reader.next()["now"]["epoch"] == 5
        for number in range(6, 12):
            write(checkpoint, [epoch(number)])
            newest = 0
            while newest < number:
                newest = reader.next().get("now", {}).get("epoch", newest)
        reader.close()
        slow.close()


def test_the_journal_is_read_only_while_somebody_looks(
    checkpoint: CheckpointStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    look = PageFeed.look

    def counted(feed: PageFeed) -> Published:
        looks.append(1)
        return look(feed)

    monkeypatch.setattr(PageFeed, "look", counted)
    with served(checkpoint) as port:
        ask(port, "/")
        assert looks == []
        reader = Reader(port)
        reader.next()
        assert looks
        reader.close()


def test_the_server_ends_at_once_whoever_reads(checkpoint: CheckpointStorage) -> None:
    before = set(threading.enumerate())
    with served(checkpoint) as port:
        readers = [Reader(port) for _ in range(3)]
        for reader in readers:
            reader.next()
        began_s = time.monotonic()
    assert time.monotonic() - began_s < 60  # a connection lasts up to an hour
    for reader in readers:
        reader.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()


def test_more_readers_than_there_is_room_for_end_the_oldest(checkpoint: CheckpointStorage) -> None:
    with served(checkpoint) as port:
        readers = [Reader(port) for _ in range(33)]
        assert readers[-1].next()["now"]["epoch"] == 5
        for reader in readers:
            reader.close()


def test_a_journal_that_is_torn_of_another_version_or_gone_leaves_what_is_there(
    checkpoint: CheckpointStorage, tmp_path: Path
) -> None:
    feed = PageFeed(checkpoint, flow="delays")
    assert feed.look().state.points[-1].epoch == 5
    segment = max((tmp_path / "ck" / "journal").iterdir())
    whole = segment.read_bytes()
    segment.write_bytes(whole[: len(whole) // 2])
    assert feed.look().state.points[-1].epoch == 5
    write(checkpoint, [{"new kind": {"x": 1}}, epoch(6)])
    assert feed.look().state.points[-1].epoch == 6
    for path in (tmp_path / "ck" / "journal").iterdir():
        path.unlink()
    write(checkpoint, [event(events.QueryStarted, epoch=-1, name="delays"), epoch(0)])
    assert [p.epoch for p in feed.look().state.points] == [0]


def test_entries_that_cannot_be_shown_leave_what_is_there(
    checkpoint: CheckpointStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = PageFeed(checkpoint, flow="delays")
    shown = feed.look().sections
    monkeypatch.setattr(live_page, "sections_of", None)
    write(checkpoint, [epoch(6)])
    assert feed.look().sections == shown


def test_a_run_that_went_silent_without_a_lease_has_died(checkpoint: CheckpointStorage) -> None:
    write(checkpoint, [event(events.QueryStarted, epoch=5, name="delays", resumed=True)])
    feed = PageFeed(checkpoint, flow="delays", now_s=lambda: BEGAN_S + 100, monotonic_s=lambda: 0)
    assert feed.look().life.state == "died"


def hostile() -> list[dict[str, Any]]:
    """A journal whose every name is an attack."""
    journal = json.loads(json.dumps(story()).replace("by_plane", "BP").replace("delays", "DL"))
    text = json.dumps(journal)
    for name in ("BP", "DL", "flights", "totals", "too slow", "N14228"):
        text = text.replace(name, json.dumps(HOSTILE)[1:-1])
    loaded: list[dict[str, Any]] = json.loads(text)
    return loaded


def test_a_report_has_text_of_a_journal_as_data_and_no_markup(tmp_path: Path) -> None:
    storage = write(write_checkpoint(tmp_path / "ck", name="delays", epochs=1), hostile())
    feed = PageFeed(storage, flow=HOSTILE)
    published = feed.look()
    page = report_page(report_of(published.state, flow=feed.flow, life=published.life))
    assert page.count("<script") == 2  # the data and the page's own
    assert "onerror=alert" in page  # it is there, as text
    assert "<img" not in page
    assert "</script><script>document" not in page
    data = page.partition('id="report">')[2].partition("</script>")[0]
    assert json.loads(data)["run"]["flow"] == HOSTILE
    assert "sha256-" in page
    assert "unsafe" not in page


def test_an_answer_is_sent_in_pieces_so_that_a_slow_reader_has_time_for_each() -> None:
    body = b"x" * 12 * 2**20

    def app(_environ: object, start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Length", str(len(body)))])
        return [body, b"", b"yz"]

    pieces = list(server._in_pieces(app)({}, lambda *_: lambda _written: None))
    assert max(map(len, pieces)) <= 2**14
    assert b"".join(pieces) == body + b"yz"


def test_a_reader_gets_the_whole_of_a_long_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    body = b"x" * 12 * 2**20
    monkeypatch.setattr(server._Handler, "timeout", 60.0)

    def app(_environ: object, start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Length", str(len(body)))])
        return [body]

    bounded = server.BoundedServer(app, host="127.0.0.1", port=0, name="slow", max_s=120.0)
    taken = 0
    try:
        with socket.socket() as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
            reader.connect(("127.0.0.1", bounded.port))
            reader.sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
            while piece := reader.recv(2**16):
                taken += len(piece)
    finally:
        bounded.close()
    assert taken > len(body)

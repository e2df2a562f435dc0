"""`godwit top` shows a stream by its journal alone, for any journal and any terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import random
import re
import select
import signal
import subprocess
import sys
import time
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow.fs
import pytest
from rich.cells import cell_len
from tests.support.checkpoints import write_checkpoint

from godwit.checkpoint import ownership as leases
from godwit.checkpoint.framing import encode_record
from godwit.checkpoint.journal import JournalWriter
from godwit.checkpoint.ownership import EXPIRY_S, acquire_lease
from godwit.checkpoint.records import FORMAT, IDENTITY, FlowIdentity, journal_path
from godwit.checkpoint.storage import RemoteStorage
from godwit.cli.main import main
from godwit.model import events
from godwit.ops.console import ASCII, BLOCKS
from godwit.ops.run_state import RunState, reduced
from godwit.ops.top import RunFigures, Sight, Viewer, figures_of, frame

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.model.events import Event

NOW_S = 1_700_000_000.0


def progress(epoch: int, busy_ms: Mapping[str, float], **more: Any) -> dict[str, Any]:
    """Make an epoch's figures; epochs are a second apart and take 250 ms."""
    began = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(NOW_S - 100 + epoch))
    return {
        "epoch": epoch,
        "batchId": epoch,
        "timestamp": f"{began}.000Z",
        "numInputRows": 1000,
        "numOutputRows": 10,
        "durationMs": {"epoch": 250.0},
        "keyGroups": {"by_plane": dict.fromkeys(busy_ms, 16)},
        "waitingKeyGroups": 0,
        "suspendedKeyGroups": 0,
        "inFlightKeyGroups": 3,
        "plannedMoves": 12,
        "executors": {
            name: {"lanes": 2, "draining": False, "cpuMs": ms / 2, "busyMs": ms}
            for name, ms in busy_ms.items()
        },
        **more,
    }


def told(kind: type[Event], at_s: float = NOW_S - 1, **values: Any) -> dict[str, Any]:
    return kind(**{"epoch": 3, "at_s": at_s, **values}).to_dict()


def entries() -> list[dict[str, Any]]:
    started = told(events.QueryStarted, NOW_S - 100, name="delays")
    epochs = [progress(n, {"0": 300.0, "1": 100.0}) for n in range(20)]
    return [
        {"event": told(events.QueryStopped, NOW_S - 200, name="delays")},
        {"event": started},
        *({"progress": epoch} for epoch in epochs),
        {
            "sources": {
                "batchId": 19,
                "sources": [
                    {
                        "description": "KafkaV2[Subscribe[flights]]",
                        "behind": 4200,
                        "inputRowsPerSecond": 10.0,
                        "processedRowsPerSecond": None,
                        "metrics": {"maxOffsetsBehindLatest": "4000"},
                    }
                ],
            }
        },
        {
            "event": told(
                events.ScaledOut,
                before=2,
                wanted=3,
                reason="too slow",
                numbers={"latency_ms": 9.5},
            )
        },
        {
            "event": told(
                events.LoadMeasured,
                period_s=10.0,
                epochs=9,
                missing=0,
                arrival_per_s=1400.0,
                epoch_s=0.4,
                bottleneck="cpu",
                usage={"cpu": 0.5},
                load_distance=0.3,
                speeds={"1": 0.33},
            )
        },
        {
            "event": told(
                events.MigrationStarted,
                migration="m1",
                component="by_plane",
                strategy="live",
                moves=15,
                state_bytes=2048,
            )
        },
    ]


def written(storage: CheckpointStorage, journal: list[dict[str, Any]]) -> CheckpointStorage:
    writer = JournalWriter(storage, "some-run")
    for entry in journal:
        ((kind, values),) = entry.items()
        writer.add(kind, values)
    writer.flush()
    return storage


@pytest.fixture
def checkpoint(tmp_path: Path) -> CheckpointStorage:
    return write_checkpoint(tmp_path / "ck", name="delays", epochs=1)


def viewer(storage: CheckpointStorage, *, later_s: float = 0.0) -> Viewer:
    return Viewer(storage, now_s=lambda: NOW_S + later_s, monotonic_s=lambda: later_s)


def figures(journal: list[dict[str, Any]]) -> RunFigures:
    return figures_of(reduce(reduced, journal, RunState()))


def sight(journal: list[dict[str, Any]]) -> Sight:
    return Sight(flow="delays", state="running", why="", figures=figures(journal))


def lines(seen: Sight, **how: Any) -> list[str]:
    made = frame(seen, **{"width": 160, "height": None, "symbols": BLOCKS, **how})
    return [line.plain for line in made]


def test_a_frame_tells_speed_load_moves_lag_and_decisions() -> None:
    shown = "\n".join(lines(sight(entries())))
    for said in (
        "epoch 19   1,000 rows/s",
        "epoch time 250 ms  median 250  longest 250",
        "key groups: 3 in flight, 12 still to move, 0 waiting, 0 suspended",
        "source KafkaV2[Subscribe[flights]]: 4200 offsets behind, 10 rows/s in, maxOffsets",
        "\nload over 10.0 s, 9 epochs: 1400 rows/s arrive, 50% of cpu used, load distance 30.0%",
        "migration m1 of by_plane (live): 15 key groups, 2.0 KiB",
        "executors, load distance 50% of the mean",
        "busy for 300 ms an epoch (150 of CPU), 2 lanes, 16 key groups",
        "22:13:19 scaling out, 1 more executor for 3: too slow (latency_ms 9.5)",
    ):
        assert said in shown
    (first, second) = [line for line in shown.splitlines() if "ms an epoch (" in line]
    assert (first[:6], second[:6]) == ("0  75%", "1  25%")
    assert first.count("█") == 3 * second.count("█") + 1  # 40 blocks, and a third of them


def test_state_has_a_line_where_its_memory_has_a_bound() -> None:
    free = progress(3, {"0": 1.0}, totalStateBytes={"by_plane": 3 << 30})
    bounded = free | {"stateTableBytes": 2 << 30, "evictedKeyGroups": 8, "fetchedKeys": 4_000}
    said = "state: 3.0 GiB, 2.0 GiB in tables; last epoch: 8 key groups evicted, 4000 keys fetched"
    assert said in lines(sight([{"progress": bounded}]))
    assert not [line for line in lines(sight([{"progress": free}])) if "in tables" in line]


def test_the_latency_of_rows_is_that_of_the_last_epoch_that_had_some() -> None:
    took = {"p50": 812.4, "p95": 9_999.0, "p99": 10_400.0, "max": 12_600.0, "sources": {}}
    with_rows = progress(3, {"0": 1.0}) | {"latencyMs": took}
    without = progress(4, {"0": 1.0}) | {"latencyMs": {}}
    shown = lines(sight([{"progress": with_rows}, {"progress": without}]))
    said = "latency of rows, from arrival to delivery: p50 812 ms  p95 9,999 ms  p99 10.4 s"
    assert any(line.startswith(said) for line in shown)
    odd = progress(5, {"0": 1.0}) | {"latencyMs": {"p50": "x", "max": float("nan")}}
    assert not any("latency" in line for line in lines(sight([{"progress": odd}])))


def test_load_is_of_this_run_and_a_lost_executor_is_marked() -> None:
    journal = [
        {"progress": progress(1, {"0": 999.0})},
        *entries(),
        {"event": told(events.ExecutorLost, executor="1")},
    ]
    seen = figures(journal)
    assert [(e.name, e.lost, e.busy_ms) for e in seen.executors] == [
        ("0", False, 300.0),
        ("1", True, 100.0),
    ]
    assert seen.load_distance == 0.0


def test_a_migration_that_has_ended_is_no_longer_under_way() -> None:
    end = told(events.MigrationFinished, migration="m1", component="by_plane", moved=15)
    assert figures([*entries(), {"event": end}]).migrations == ()


def test_a_journal_of_events_alone_still_tells_epochs() -> None:
    done = told(events.EpochCommitted, rows_in=500, rows_out=1, duration_ms=100.0)
    seen = figures([{"event": done}])
    assert [(e.epoch, e.rows_in, e.duration_ms) for e in seen.epochs] == [(3, 500, 100.0)]
    assert seen.rows_per_s == pytest.approx(5000)
    assert seen.executors == ()


@pytest.mark.parametrize("width", [1, 7, 20, 40, 80, 300])
@pytest.mark.parametrize("height", [1, 3, 8, 24, None])
@pytest.mark.parametrize("symbols", [BLOCKS, ASCII])
def test_no_line_is_wider_and_no_frame_higher_than_the_terminal(
    width: int, height: int | None, symbols: Any
) -> None:
    many = {f"executor-{n}-日本語": float(n) for n in range(100)}
    journal = [*entries(), {"progress": progress(20, many)}]
    journal += [{"event": told(events.QueryFailed, name="日本語" * 40, error="x" * 500)}] * 20
    shown = lines(sight(journal), width=width, height=height, symbols=symbols)
    assert all(cell_len(line) <= width for line in shown)
    assert height is None or len(shown) <= height
    if symbols is ASCII:
        assert all(line.isascii() for line in shown)


def test_with_more_executors_than_lines_the_busiest_are_shown() -> None:
    journal = [{"progress": progress(0, {str(n): float(n) for n in range(100)})}]
    shown = lines(sight(journal), height=12)
    assert any(line.startswith("99") for line in shown)
    assert any("with less load" in line for line in shown)
    assert len(shown) <= 12


def test_of_more_executors_than_any_cluster_has_the_rest_is_counted_only() -> None:
    journal = [
        {"progress": progress(n, dict.fromkeys(map(str, range(12_000)), 1.0))} for n in (0, 1)
    ]
    seen = sight(journal)
    assert (len(seen.figures.executors), seen.figures.executors_left_out) == (500, 11_500)
    assert any("; 11500 more are not shown" in line for line in lines(seen, height=40))


def test_a_query_that_stopped_failed_runs_or_died_is_said_to_have(
    checkpoint: CheckpointStorage,
) -> None:
    running = [{"event": told(events.QueryStarted, NOW_S - 1, name="delays")}]
    written(checkpoint, running)
    assert viewer(checkpoint).look().state == "running"
    lease = acquire_lease(checkpoint, "some-run")
    seen = viewer(checkpoint, later_s=60).look()
    assert (seen.state, seen.why) == ("running", "last entry 61 s ago")
    lease.release()
    seen = viewer(checkpoint, later_s=600).look()
    assert seen.state == "died"
    assert seen.why == "last entry 10 min ago, and the lease on the checkpoint is free"
    failed = told(events.QueryFailed, name="delays", error="a sink is full")
    written(checkpoint, [{"event": failed}])
    seen = viewer(checkpoint, later_s=600).look()
    assert (seen.state, seen.why) == (
        "failed",
        "query delays failed after epoch 3: a sink is full",
    )
    written(checkpoint, [{"event": told(events.QueryStarted, name="delays", resumed=True)}])
    assert viewer(checkpoint).look().state == "running"
    written(checkpoint, [{"event": told(events.QueryStopped, name="delays")}])
    assert viewer(checkpoint).look().state == "stopped"


def test_a_clock_that_is_ahead_does_not_keep_a_query_alive(checkpoint: CheckpointStorage) -> None:
    written(checkpoint, [{"event": told(events.QueryStarted, NOW_S + 3600, name="delays")}])
    seen = Viewer(checkpoint, now_s=lambda: NOW_S).look()
    assert seen.state == "died"
    assert "the driver's clock is 60 min ahead of this machine's" in seen.why


def test_far_away_a_lease_that_beats_is_alive_and_one_that_stands_still_is_dead() -> None:
    filesystem, root = pyarrow.fs.FileSystem.from_uri("mock:///bucket/ck")
    storage = RemoteStorage(filesystem, root, uri="mock:///ck", renames=False, single_driver=True)
    storage.write_atomic(IDENTITY, encode_record(FlowIdentity(name="far", num_key_groups=4)))
    written(storage, [{"event": told(events.QueryStarted, name="far")}])
    lease = acquire_lease(storage, "some-run")
    assert isinstance(lease, leases.HeartbeatLease)
    now_s = 60.0
    looking = Viewer(storage, now_s=lambda: NOW_S + now_s, monotonic_s=lambda: now_s)
    assert looking.look().state == "silent"
    lease._beat += 1
    lease._write_beat()
    assert looking.look().state == "running"
    now_s += EXPIRY_S + 1
    assert looking.look().state == "died"
    lease.release()


def test_once_prints_a_plain_frame_and_json_the_figures(
    checkpoint: CheckpointStorage, capsys: pytest.CaptureFixture[str]
) -> None:
    written(checkpoint, entries())
    path = checkpoint.uri
    for asked in (["top", path, "--once"], ["top", path]):
        assert main(asked) == 0
        shown = capsys.readouterr().out
        assert shown.startswith("delays  died  last entry ")
        assert "\x1b" not in shown
        assert "executors, load distance 50% of the mean" in shown
    assert main(["top", path, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["flow"], values["state"]) == ("delays", "died")
    assert values["figures"]["executors"][0]["busy_ms"] == 300.0
    assert values["figures"]["sources"][0]["behind"] == 4200


def test_what_is_no_checkpoint_or_has_no_journal_is_an_error(
    tmp_path: Path, checkpoint: CheckpointStorage, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", str(tmp_path / "nothing")]) == 2
    assert "is not a checkpoint of Godwit" in capsys.readouterr().err
    assert main(["top", checkpoint.uri, "--once"]) == 2
    assert "has no journal that can be read yet" in capsys.readouterr().err
    identity = tmp_path / "ck" / IDENTITY
    content = bytearray(identity.read_bytes())
    content[7] = FORMAT + 1
    content[28:32] = __import__("zlib").crc32(content[:28]).to_bytes(4, "little")
    identity.write_bytes(content)
    assert main(["top", checkpoint.uri, "--once"]) == 2
    assert f"has format {FORMAT + 1} of a checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "inf", "soon"])
def test_an_interval_that_is_none_is_refused(
    interval: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["top", "ck", "--interval", interval])
    assert stopped.value.code == 2
    told = capsys.readouterr().err
    assert "is not between 0.1 and 3600" in told or "invalid number of seconds" in told


def hostile(rnd: random.Random, depth: int = 0) -> Any:
    """Any JSON value, and those that json.loads accepts beyond."""
    kind = rnd.randrange(9 if depth < 3 else 7)
    if kind == 7:
        return [hostile(rnd, depth + 1) for _ in range(rnd.randrange(4))]
    if kind == 8:
        return {str(hostile(rnd, 9)): hostile(rnd, depth + 1) for _ in range(rnd.randrange(4))}
    return rnd.choice(
        [None, True, -1, 10**400, 1e300, float("nan"), float("inf"), "", "\x1b[2J\n", "é" * 9]
    )


def test_no_journal_however_made_up_breaks_a_frame() -> None:
    rnd = random.Random(20)
    good = entries()
    for _ in range(1500):
        journal: list[dict[str, Any]] = []
        for entry in rnd.sample(good, 6):
            ((kind, values),) = entry.items()
            spoilt = {**values, rnd.choice(list(values)): hostile(rnd)}
            if "executors" in spoilt and rnd.random() < 0.5:
                spoilt["executors"] = {"0": hostile(rnd), "\x1b]0;x\x07": {"cpuMs": hostile(rnd)}}
            journal.append({kind: hostile(rnd) if rnd.random() < 0.1 else spoilt})
        for symbols in (BLOCKS, ASCII):
            shown = lines(sight(journal), width=rnd.choice([5, 20, 160]), symbols=symbols)
            assert all(char.isprintable() for line in shown for char in line)


def test_segments_that_are_garbage_truncated_or_huge_cost_their_lines_only(
    checkpoint: CheckpointStorage, tmp_path: Path
) -> None:
    written(checkpoint, entries())
    good = (tmp_path / "ck" / journal_path(0)).read_bytes()
    checkpoint.write_atomic(journal_path(1), good[: len(good) // 2])
    checkpoint.write_atomic(journal_path(2), b"\x00" * 5000)
    checkpoint.write_atomic(journal_path(3), b"")
    with (tmp_path / "ck" / journal_path(4)).open("wb") as huge:
        huge.truncate(2**40)  # a hole: nobody has to read it to tell
    assert viewer(checkpoint).look().figures.epochs[-1].epoch == 19


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
def test_a_terminal_of_another_encoding_gets_what_it_can_show(
    checkpoint: CheckpointStorage, encoding: str
) -> None:
    written(checkpoint, [*entries(), {"event": told(events.QueryFailed, name="日本", error="é…")}])
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "20", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "godwit.cli.main", "top", checkpoint.uri, "--once"],
        capture_output=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    shown = done.stdout.decode(encoding)
    assert "executors, load distance" in shown
    assert ("█" in shown) == (encoding == "utf-8")


def test_on_a_terminal_it_draws_until_ctrl_c_and_leaves_the_last_frame(
    checkpoint: CheckpointStorage,
) -> None:
    written(checkpoint, entries())
    main_end, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "godwit.cli.main", "top", checkpoint.uri, "--interval", "0.1"],
        stdin=terminal,
        stdout=terminal,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "20", "LINES": "12"},
    ) as process:
        os.close(terminal)
        shown = read_until(main_end, lambda text: text.count("epoch 19") >= 2)
        process.send_signal(signal.SIGINT)
        shown = read_until(main_end, lambda _: False)
        try:
            status = process.wait(60)
        finally:
            process.kill()
        assert status == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
    os.close(main_end)
    assert "\x1b[?1049l" in shown  # the screen from before is back
    after = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.rpartition("\x1b[?1049l")[2])
    assert "epoch 19" in after
    assert all(cell_len(line) <= 20 for line in after.splitlines())


def read_until(descriptor: int, enough: Any) -> str:
    """Read from a terminal until there is enough, or nobody writes any more."""
    shown = io.StringIO()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if not select.select([descriptor], [], [], 0.5)[0]:
            continue
        try:
            part = os.read(descriptor, 65536)
        except OSError:  # how Linux says that the other end is closed
            break
        if not part:
            break
        shown.write(part.decode("utf-8", "replace"))
        if enough(shown.getvalue()):
            break
    return shown.getvalue()


def test_looking_again_at_a_long_journal_reads_its_end_only(
    checkpoint: CheckpointStorage,
) -> None:
    writer = JournalWriter(checkpoint, "some-run")
    for n in range(4000):
        writer.add("progress", progress(n, {str(e): 1.0 for e in range(8)}))
    writer.flush()
    read: list[int] = []

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(checkpoint, name)

        def read(self, path: str, *more: Any) -> Any:
            found = checkpoint.read(path, *more)
            read.append(len(found))
            return found

    looking = viewer(Watched())  # type: ignore[arg-type]
    looking.look()
    assert sum(read) < 2**20 + 2**18  # a thousand entries
    read.clear()
    assert looking.look().figures.epochs[-1].epoch == 3999
    assert sum(read) <= 128 * 2**10 + 200

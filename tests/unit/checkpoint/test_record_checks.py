from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.support.records import segment_ref, snapshot_ref

from godwit.checkpoint.evolution import FlowVersion, OperatorVersion, StateDescription
from godwit.checkpoint.framing import decode_record, encode_record
from godwit.checkpoint.records import (
    IDENTITY,
    BatchRef,
    BlockRef,
    CommitRecord,
    EditRecord,
    FlowIdentity,
    JournalSegment,
    KeyGroupEntry,
    Manifest,
    OutputRef,
    RunRecord,
    StateId,
    StateManifest,
    WaitingManifest,
    commit_path,
    edit_path,
    flow_path,
    journal_path,
    manifest_path,
    run_path,
)
from godwit.model.errors import CorruptCheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK = BlockRef(file="blocks/000000000005-lane0-ab.blk", offset=64, length=100, checksum=7)
SEGMENT = segment_ref(epoch=5, block=BLOCK, key_groups=(1, 3), row_ends=(2, 5))
SNAPSHOT = snapshot_ref(version=4, rows=2, block=BLOCK)
OUTPUT = OutputRef(sink="out", flow=0, lane=0, rows=2, block=BLOCK)
COMMIT = CommitRecord(
    epoch=5,
    run_id="r",
    segments=(SEGMENT,),
    snapshots=(SNAPSHOT,),
    outputs=(OUTPUT,),
    consumed={"op": [1]},
    retained_from=2,
    manifest=1,
)
MANIFEST = Manifest(
    epoch=5,
    flow=0,
    num_key_groups=8,
    states=(
        StateManifest(
            state=StateId("op", "state"),
            segments=(SEGMENT,),
            snapshots=(SNAPSHOT,),
            entries=(KeyGroupEntry(key_group=1, version=5, base=2),),
        ),
    ),
    waiting=(WaitingManifest(operator="op", segments=(), consumed={3: 4}),),
)
IDENTITY_RECORD = FlowIdentity(name="f", num_key_groups=8, query_id="0123456789abcdef" * 2)
JOURNAL_SEGMENT = JournalSegment(number=3, run_id="r", entries=(b'{"event": {}}',))
replace: Callable[..., Any] = msgspec.structs.replace


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def with_block(**changes: Any) -> Any:
    return replace(COMMIT, outputs=(replace(OUTPUT, block=replace(BLOCK, **changes)),))


def with_segment(**changes: Any) -> Any:
    return replace(COMMIT, segments=(replace(SEGMENT, **changes),))


def with_snapshot(**changes: Any) -> Any:
    return replace(COMMIT, snapshots=(replace(SNAPSHOT, **changes),))


def with_state(**changes: Any) -> Any:
    return replace(MANIFEST, states=(replace(MANIFEST.states[0], **changes),))


def with_type(value: Any) -> FlowVersion:
    state = StateDescription(columns=(("v", "int64"),), codec="arrow", type=value)
    operator = OperatorVersion(kind="compute", keys=(("k", "string"),), states={"state": state})
    return FlowVersion(operators={"op": operator})


GOOD: dict[str, tuple[Any, str]] = {
    "identity": (IDENTITY_RECORD, IDENTITY),
    "run": (RunRecord(number=3, run_id="r"), run_path(3)),
    "commit": (COMMIT, commit_path(5)),
    "manifest": (MANIFEST, manifest_path(5)),
    "flow": (replace(with_type(nested(60)), previous=1), flow_path(2)),
    "journal": (JOURNAL_SEGMENT, journal_path(3)),
}

HOSTILE: dict[str, tuple[Any, str, str]] = {
    "epoch of another file": (COMMIT, commit_path(6), "it is of epoch 5"),
    "run of another file": (RunRecord(number=4, run_id="r"), run_path(3), "it is of run 4"),
    "edit of another file": (EditRecord(number=4, flow=0), edit_path(3), "it is of edit 4"),
    "journal's segment of another file": (JOURNAL_SEGMENT, journal_path(4), "it is of segment 3"),
    "journal of other than objects": (
        replace(JOURNAL_SEGMENT, entries=(b'{"event": {}}', b"[1, 2]")),
        journal_path(3),
        "not a JSON object",
    ),
    "manifest of another file": (MANIFEST, manifest_path(6), "it is of epoch 5"),
    "key groups without end": (
        replace(IDENTITY_RECORD, num_key_groups=200_000_000),
        IDENTITY,
        "<= 32768 - at `.*num_key_groups`",
    ),
    "no key groups": (
        replace(IDENTITY_RECORD, num_key_groups=0),
        IDENTITY,
        ">= 1 - at `.*num_key_groups`",
    ),
    "history that is no id": (replace(COMMIT, history="../x"), commit_path(5), "at `.*history`"),
    "predecessor that is no digest": (
        replace(COMMIT, previous="?"),
        commit_path(5),
        "regex .* at `.*previous`",
    ),
    "query that moves a store": (
        replace(IDENTITY_RECORD, query_id="../../etc"),
        IDENTITY,
        "at `.*query_id`",
    ),
    "manifest of too many key groups": (
        replace(MANIFEST, num_key_groups=200_000_000),
        manifest_path(5),
        "<= 32768 - at `.*num_key_groups`",
    ),
    "block outside": (
        with_block(file="blocks/../../x.blk"),
        commit_path(5),
        "not a file of blocks",
    ),
    "block elsewhere": (with_block(file="/etc/passwd"), commit_path(5), "not a file of blocks"),
    "block in a run": (with_block(file=run_path(5)), commit_path(5), "not a file of blocks"),
    "block without a file": (
        with_block(file="", data=b"x"),
        commit_path(5),
        "not a file of blocks",
    ),
    "block of an earlier epoch": (
        with_block(file="blocks/000000000004-a-ab.blk"),
        commit_path(5),
        "not written for it",
    ),
    "block in another record": (
        with_block(file=commit_path(6)),
        commit_path(5),
        "not written for it",
    ),
    "block before its file": (with_block(offset=-64), commit_path(5), ">= 0 - at `.*offset`"),
    "block that is not aligned": (with_block(offset=65), commit_path(5), "multiple of 64 - at"),
    "block of negative length": (with_block(length=-1), commit_path(5), ">= 0 - at `.*length`"),
    "block without end": (with_block(length=2**63), commit_path(5), "<= .* at `.*length`"),
    "key group that does not exist": (
        with_segment(key_groups=(1, 32_768)),
        commit_path(5),
        "at `.*key_groups",
    ),
    "negative key group": (
        with_segment(key_groups=(-1, 3)),
        commit_path(5),
        "at `.*key_groups",
    ),
    "huge key group": (
        with_segment(key_groups=(1, 2**63)),
        commit_path(5),
        "at `.*key_groups",
    ),
    "key groups out of order": (with_segment(key_groups=(3, 1)), commit_path(5), "in order"),
    "a key group twice": (with_segment(key_groups=(3, 3)), commit_path(5), "in order"),
    "rows that go backwards": (with_segment(row_ends=(5, 2)), commit_path(5), "go backwards"),
    "negative rows": (with_segment(row_ends=(-1, 2)), commit_path(5), "at `.*row_ends"),
    "rows for no key group": (with_segment(row_ends=(1, 2, 3)), commit_path(5), "3 ends"),
    "segment of another epoch": (with_segment(epoch=4), commit_path(5), "segment is of epoch 4"),
    "snapshot of the future": (with_snapshot(version=6), commit_path(5), "version is 6"),
    "snapshot of no key group": (
        with_snapshot(key_group=-1),
        commit_path(5),
        ">= 0 - at `.*key_group`",
    ),
    "snapshot with negative rows": (with_snapshot(rows=-1), commit_path(5), ">= 0 - at `.*rows`"),
    "retained from the future": (
        replace(COMMIT, retained_from=6),
        commit_path(5),
        "retained_from is 6",
    ),
    "manifest of the future": (replace(COMMIT, manifest=5), commit_path(5), "manifest is 5"),
    "consumed of no key group": (
        replace(COMMIT, consumed={"op": [2**40]}),
        commit_path(5),
        "at `.*consumed",
    ),
    "source's entry outside": (
        replace(COMMIT, batch=BatchRef(number=1, digest="", sources={"sources/0/../../x": b""})),
        commit_path(5),
        "not an entry of a source's log",
    ),
    "nested assignment": (
        replace(COMMIT, assignments={"c": nested(100)}),
        commit_path(5),
        "nested more than 64 levels",
    ),
    "entry of no key group": (
        with_state(entries=(KeyGroupEntry(key_group=8, version=1, base=0),)),
        manifest_path(5),
        "key_group is 8",
    ),
    "entry of the future": (
        with_state(entries=(KeyGroupEntry(key_group=1, version=6, base=0),)),
        manifest_path(5),
        "version is 6",
    ),
    "state twice": (
        replace(MANIFEST, states=MANIFEST.states * 2),
        manifest_path(5),
        "names a state twice",
    ),
    "consumed in a manifest": (
        replace(MANIFEST, waiting=(WaitingManifest(operator="op", segments=(), consumed={9: 1}),)),
        manifest_path(5),
        "key group that does not exist",
    ),
    "flow that follows itself": (
        replace(with_type(None), previous=2),
        flow_path(2),
        "follows flow version 2",
    ),
    "nested type": (with_type(nested(70)), flow_path(2), "nested more than 64 levels"),
}


@pytest.mark.parametrize("kind", GOOD)
def test_a_record_that_can_be_so_passes(kind: str) -> None:
    record, path = GOOD[kind]
    assert decode_record(encode_record(record), type(record), path=path) == record


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_record_that_cannot_be_so_is_refused_though_its_checksum_is_right(kind: str) -> None:
    record, path, told = HOSTILE[kind]
    with pytest.raises(CorruptCheckpointError, match=told) as caught:
        decode_record(encode_record(record), type(record), path=path)
    assert caught.value.context["file"] == path


@pytest.mark.parametrize("levels", [2_000, 200_000])
def test_a_record_that_nests_without_end_is_refused_and_crashes_nobody(levels: int) -> None:
    body = msgspec.msgpack.encode({"epoch": 5, "run_id": "r"})
    deep = b"\x83" + body[1:] + b"\xabassignments\x81\xa1c" + b"\x91" * levels + b"\x01"
    framed = encode_record(msgspec.Raw(deep))  # type: ignore[arg-type]
    with pytest.raises(CorruptCheckpointError, match=r"commits/0+5\.rec"):
        decode_record(framed, CommitRecord, path=commit_path(5))

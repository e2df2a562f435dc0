from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from godwit.checkpoint.framing import (
    decode_record,
    encode_commit,
    encode_record,
    row_problems,
    rows_are_sound,
)
from godwit.checkpoint.records import (
    ALIGNMENT,
    BlockRef,
    CommitRecord,
    OutputRef,
    RunRecord,
    SegmentRef,
    commit_path,
    run_path,
)
from godwit.model.errors import CheckpointMismatchError, CorruptCheckpointError

RUN = RunRecord(number=3, run_id="a run")


def test_a_record_comes_back() -> None:
    assert decode_record(encode_record(RUN), RunRecord, path=run_path(3)) == RUN


def test_every_changed_byte_is_noticed() -> None:
    data = encode_record(RUN)
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 0x40
        with pytest.raises(CorruptCheckpointError, match=r"'runs/3\.rec'") as caught:
            decode_record(bytes(changed), RunRecord, path="runs/3.rec")
        assert caught.value.context["file"] == "runs/3.rec"


def test_every_truncation_is_noticed() -> None:
    data = encode_record(RUN)
    for length in range(len(data)):
        with pytest.raises(CorruptCheckpointError, match="x"):
            decode_record(data[:length], RunRecord, path="x")
    with pytest.raises(CorruptCheckpointError, match="bytes instead of"):
        decode_record(data + b"\0", RunRecord, path="x")


def test_another_kind_of_record_is_not_taken_for_this_one() -> None:
    with pytest.raises(CorruptCheckpointError, match="does not hold a CommitRecord"):
        decode_record(encode_record(RUN), CommitRecord, path="x")


@pytest.mark.parametrize("other", [2, 4])
def test_another_format_is_refused_by_name_and_told_from_damage(other: int) -> None:
    data = bytearray(encode_record(RUN))
    data[7] = other
    header = struct.calcsize("<8sQQI")
    data[header : header + 4] = struct.pack("<I", zlib.crc32(data[:header]))
    with pytest.raises(CheckpointMismatchError, match=f"format {other}.*reads format 3") as raised:
        decode_record(bytes(data), RunRecord, path="x")
    assert "Start with a new checkpoint" in raised.value.remedy


def test_inline_blocks_get_an_aligned_address_in_the_records_own_file() -> None:
    contents = [b"one", b"", b"three" * 100]
    outputs = tuple(
        OutputRef(
            sink="s",
            flow=0,
            lane=i,
            rows=0,
            block=BlockRef(file="", offset=0, length=len(data), checksum=0, data=data),
        )
        for i, data in enumerate(contents)
    )
    data, settled = encode_commit(CommitRecord(epoch=7, run_id="r", outputs=outputs))
    for content, output in zip(contents, settled.outputs, strict=True):
        block = output.block
        assert block.file == "commits/000000000007.rec"
        assert block.offset % ALIGNMENT == 0
        assert data[block.offset : block.offset + block.length] == content == block.data
    stored = decode_record(data, CommitRecord, path=commit_path(7))
    assert [o.block.offset for o in stored.outputs] == [o.block.offset for o in settled.outputs]
    assert not any(output.block.data for output in stored.outputs)


def test_a_block_that_has_a_file_keeps_it() -> None:
    block = BlockRef(file="blocks/000000000007-a-b.blk", offset=64, length=5, checksum=1)
    output = OutputRef(sink="s", flow=0, lane=0, rows=0, block=block)
    _, settled = encode_commit(CommitRecord(epoch=7, run_id="r", outputs=(output,)))
    assert settled.outputs == (output,)


SEGMENTS = st.lists(
    st.tuples(
        st.lists(st.integers(-1, 9), max_size=5), st.lists(st.integers(-2, 2**63), max_size=5)
    ).map(lambda one: (tuple(sorted(one[0])), tuple(sorted(one[1])[: len(one[0])] or one[1]))),
    max_size=4,
)


@given(columns=SEGMENTS, shuffled=st.booleans())
@settings(derandomize=True, deadline=None, max_examples=300)
def test_segments_are_sound_together_exactly_if_nothing_is_wrong_with_any(
    columns: list[tuple[tuple[int, ...], tuple[int, ...]]], *, shuffled: bool
) -> None:
    segments = [
        SegmentRef(
            operator="o",
            state="s",
            flow=0,
            epoch=0,
            lane=lane,
            kind="changes",
            block=BlockRef(file="", offset=0, length=1, checksum=0),
            key_groups=key_groups[::-1] if shuffled else key_groups,
            row_ends=row_ends,
        )
        for lane, (key_groups, row_ends) in enumerate(columns)
    ]
    wrong = [problem for segment in segments for problem in row_problems(segment, 8)]
    assert rows_are_sound(segments, 8) == (not wrong)

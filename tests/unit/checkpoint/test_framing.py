from __future__ import annotations

import re
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.records import segment_ref
from tests.support.rounds import rounds

import godwit as gw
from godwit.checkpoint.framing import (
    decode_record,
    encode_commit,
    encode_record,
    row_problems,
    rows_are_sound,
)
from godwit.checkpoint.records import (
    ALIGNMENT,
    FORMAT,
    RELEASES,
    BlockRef,
    CommitRecord,
    OutputRef,
    RunRecord,
    commit_path,
    run_path,
)
from godwit.cli.main import main
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


def of_format(data: bytes, other: int) -> bytes:
    """Return a record as if another version had written it."""
    changed = bytearray(data)
    changed[7] = other
    header = struct.calcsize("<8sQQI")
    changed[header : header + 4] = struct.pack("<I", zlib.crc32(changed[:header]))
    return bytes(changed)


@pytest.mark.parametrize(("other", "remedy"), [(2, "No release of"), (4, "A later version of")])
def test_another_format_is_refused_by_name_and_told_from_damage(other: int, remedy: str) -> None:
    with pytest.raises(CheckpointMismatchError, match=f"format {other}.*reads format 3") as raised:
        decode_record(of_format(encode_record(RUN), other), RunRecord, path="x")
    assert raised.value.context == {"file": "x", "format": other}
    assert raised.value.remedy.startswith(remedy)


def test_a_format_of_an_earlier_release_is_refused_with_the_release_that_reads_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(RELEASES, 2, ("0.0.8", "0.0.9"))
    with pytest.raises(CheckpointMismatchError, match=r"Godwit 0\.0\.8 and 0\.0\.9 reads it"):
        decode_record(of_format(encode_record(RUN), 2), RunRecord, path="x")


def test_this_version_is_one_of_those_that_read_today_s_format() -> None:
    assert gw.__version__.rpartition(".")[0] in RELEASES[FORMAT]
    guide = (Path(__file__).parents[3] / "docs/guide/upgrade.md").read_text()
    rows = re.findall(r"^\| (\d+) \| ([\d., ]+) \| ([\d., ]+) \|$", guide, re.MULTILINE)
    assert {int(number): tuple(by.split(", ")) for number, by, _ in rows} == RELEASES


@pytest.mark.parametrize("other", [FORMAT - 1, FORMAT + 1])
def test_a_whole_checkpoint_of_another_format_is_refused_and_stays_as_it_is(
    tmp_path: Path, other: int, capsys: pytest.CaptureFixture[str]
) -> None:
    flow = gw.Flow("delays", num_key_groups=4)
    rows = flow.source("rows", gw.testing.stream("k int, n long"))
    flow.sink("totals", rows.key_by("k").compute(total=gw.sum("n")), gw.sinks.noop())
    inputs = {"rows": [{"k": k, "n": k} for k in range(8)]}
    gw.testing.run(flow, inputs, epochs=2, checkpoint=tmp_path / "ck")
    for record in (tmp_path / "ck").rglob("*.rec"):
        record.write_bytes(of_format(record.read_bytes(), other))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.rec")}
    with pytest.raises(CheckpointMismatchError, match=f"has format {other} of a checkpoint"):
        gw.testing.run(flow, inputs, checkpoint=tmp_path / "ck")
    for action in (["inspect"], ["rename"], ["copy"]):
        names = {"rename": ["totals", "sums"], "copy": [str(tmp_path / "copy")]}
        command = ["checkpoint", *action, str(tmp_path / "ck"), *names.get(action[0], [])]
        assert main(command) == 2
        assert f"has format {other} of a checkpoint" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.rec")} == before


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
        st.lists(st.integers(-1, 9), max_size=5), st.lists(st.integers(-2, 2**62), max_size=5)
    ).map(lambda one: (tuple(sorted(one[0])), tuple(sorted(one[1])[: len(one[0])] or one[1]))),
    max_size=4,
)


@given(columns=SEGMENTS, shuffled=st.booleans())
@settings(derandomize=True, deadline=None, max_examples=rounds(60, 300))
def test_segments_are_sound_together_exactly_if_nothing_is_wrong_with_any(
    columns: list[tuple[tuple[int, ...], tuple[int, ...]]], *, shuffled: bool
) -> None:
    segments = [
        segment_ref(
            operator="o",
            state="s",
            lane=lane,
            block=BlockRef(file="", offset=0, length=1, checksum=0),
            key_groups=key_groups[::-1] if shuffled else key_groups,
            row_ends=row_ends,
        )
        for lane, (key_groups, row_ends) in enumerate(columns)
    ]
    wrong = [problem for segment in segments for problem in row_problems(segment, 8)]
    assert rows_are_sound(segments, 8) == (not wrong)

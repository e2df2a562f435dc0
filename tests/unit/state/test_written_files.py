"""Descriptions of files at a sink's target: they come back, and none leads out of the target."""

from __future__ import annotations

import msgspec
import pytest

from godwit.model.errors import CorruptCheckpointError
from godwit.state.written_files import WrittenFile, decode_files, encode_files


def test_files_come_back_as_they_were() -> None:
    files = [
        WrittenFile(path="a/b.parquet", rows=3, size_bytes=99),
        WrittenFile(path="c", rows=0, size_bytes=0, partition={"p": None}, facts={"s": {"n": 1}}),
    ]
    assert decode_files(encode_files(files)) == files


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/passwd", "a//b", "", "a/.", "a\0b"])
def test_a_path_that_leads_out_of_the_target_is_refused(path: str) -> None:
    data = encode_files([WrittenFile(path=path, rows=1, size_bytes=1)])
    with pytest.raises(CorruptCheckpointError, match="within the target of a sink"):
        decode_files(data)


@pytest.mark.parametrize("changed", [{"rows": -1}, {"size_bytes": -1}])
def test_numbers_that_cannot_be_are_refused(changed: dict[str, int]) -> None:
    file = msgspec.structs.replace(WrittenFile(path="a", rows=1, size_bytes=1), **changed)
    with pytest.raises(CorruptCheckpointError, match="rows and"):
        decode_files(encode_files([file]))


@pytest.mark.parametrize("data", [b"", b"\xc1", msgspec.msgpack.encode({"path": 1}), b"\x91\x90"])
def test_bytes_that_describe_no_files_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptCheckpointError, match="does not describe files"):
        decode_files(data)

"""Descriptions of files at a sink's target: they come back, and none leads out of the target."""

from __future__ import annotations

import msgspec
import pytest

from godwit.model.errors import CorruptCheckpointError
from godwit.plan.staging import WrittenFile, WrittenFiles, decode_files, encode_files

FILE = WrittenFile(path="a", delivered="b", rows=1, size_bytes=1)


def files(*changes: dict[str, object]) -> WrittenFiles:
    made = tuple(msgspec.structs.replace(FILE, **change) for change in changes)
    return WrittenFiles(target="out", files=made)


def test_files_come_back_as_they_were() -> None:
    written = files({}, {"partition": {"p": None, "q": "x"}, "facts": {"s": {"n": 1}}})
    assert decode_files(encode_files(written)) == written


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/passwd", "a//b", "", "a/.", "a\0b"])
@pytest.mark.parametrize("field", ["path", "delivered"])
def test_a_path_that_leads_out_of_the_target_is_refused(field: str, path: str) -> None:
    with pytest.raises(CorruptCheckpointError, match="within the target of a sink"):
        decode_files(encode_files(files({field: path})))


@pytest.mark.parametrize("changed", [{"rows": -1}, {"size_bytes": -1}])
def test_numbers_that_cannot_be_are_refused(changed: dict[str, object]) -> None:
    with pytest.raises(CorruptCheckpointError, match="Expected `int` >= 0"):
        decode_files(encode_files(files(changed)))


@pytest.mark.parametrize("data", [b"", b"\xc1", msgspec.msgpack.encode({"path": 1}), b"\x91\x90"])
def test_bytes_that_describe_no_files_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptCheckpointError, match="does not describe files"):
        decode_files(data)

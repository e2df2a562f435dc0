from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from godwit.checkpoint.blocks import BlockWriter, decode_batch, encode_batch, read_batch, read_block
from godwit.checkpoint.storage import CheckpointStorage
from godwit.model.errors import CorruptCheckpointError

if TYPE_CHECKING:
    from pathlib import Path

BATCH = pa.record_batch({"hash": pa.array([1, 2, 3], pa.int64()), "name": ["a", None, "c"]})


@pytest.fixture
def storage(tmp_path: Path) -> CheckpointStorage:
    return CheckpointStorage.open(tmp_path)


@pytest.mark.parametrize("inline_limit_bytes", [0, 1_000, 1_000_000])
def test_blocks_come_back_in_the_order_they_were_added(
    storage: CheckpointStorage, inline_limit_bytes: int
) -> None:
    contents = [b"", b"x", b"y" * 64, b"z" * 5_000, b"last"]
    with BlockWriter(
        storage, epoch=1, name="lane0", inline_limit_bytes=inline_limit_bytes
    ) as writer:
        assert [writer.add(data) for data in contents] == [0, 1, 2, 3, 4]
        refs = writer.close()
    assert [read_block(storage, ref).to_pybytes() for ref in refs] == contents


def test_small_blocks_make_no_file_and_large_ones_make_one(storage: CheckpointStorage) -> None:
    with BlockWriter(storage, epoch=1, name="a", inline_limit_bytes=128) as writer:
        writer.add(b"x" * 64)
        writer.add(b"x" * 64)
        assert [ref.file for ref in writer.close()] == ["", ""]
    assert storage.list("blocks") == {}
    with BlockWriter(storage, epoch=1, name="a", inline_limit_bytes=127) as writer:
        writer.add(b"x" * 64)
        writer.add(b"x" * 64)
        assert [ref.file for ref in writer.close()] == [writer.path] * 2
    assert list(storage.list("blocks")) == [writer.path]


def test_two_attempts_never_share_a_name(storage: CheckpointStorage) -> None:
    first, second = (BlockWriter(storage, epoch=1, name="lane0") for _ in range(2))
    assert first.path != second.path


def test_any_name_makes_a_file_name_that_carries_the_epoch(storage: CheckpointStorage) -> None:
    writer = BlockWriter(storage, epoch=42, name="Größe/3 ../x", attempt="a1")
    assert writer.path == "blocks/000000000042-Gr_e_3_.._x-a1.blk"


def test_an_attempt_that_fails_leaves_nothing(storage: CheckpointStorage) -> None:
    def write() -> None:
        with BlockWriter(storage, epoch=1, name="a", inline_limit_bytes=0) as writer:
            writer.add(b"x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()
    assert storage.list("blocks") == {}


def test_a_local_block_is_mapped_and_aligned(storage: CheckpointStorage) -> None:
    with BlockWriter(storage, epoch=1, name="a", inline_limit_bytes=0) as writer:
        writer.add(b"odd")
        writer.add(encode_batch(BATCH))
        _, ref = writer.close()
    before = pa.total_allocated_bytes()
    batch = read_batch(storage, ref)
    assert batch == BATCH
    assert pa.total_allocated_bytes() == before
    assert batch.column(0).buffers()[1].address % 8 == 0


@pytest.mark.parametrize("position", [0, 2, 3, 63])
def test_a_changed_byte_is_noticed_in_the_padding_too(
    storage: CheckpointStorage, tmp_path: Path, position: int
) -> None:
    with BlockWriter(storage, epoch=1, name="a", inline_limit_bytes=0) as writer:
        writer.add(b"odd")
        (ref,) = writer.close()
    content = bytearray((tmp_path / ref.file).read_bytes())
    content[position] ^= 1
    (tmp_path / ref.file).write_bytes(content)
    with pytest.raises(CorruptCheckpointError, match="fails its checksum") as caught:
        read_block(storage, ref)
    assert caught.value.context["file"] == ref.file


def test_changed_inline_bytes_are_noticed(storage: CheckpointStorage) -> None:
    with BlockWriter(storage, epoch=1, name="a") as writer:
        writer.add(b"right")
        (ref,) = writer.close()
    for wrong in (b"wrong", b"", b"right and more"):
        with pytest.raises(CorruptCheckpointError, match="fails its checksum"):
            read_block(storage, msgspec.structs.replace(ref, data=wrong))


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_a_batch_comes_back(compression: str | None) -> None:
    assert decode_batch(encode_batch(BATCH, compression)) == BATCH  # type: ignore[arg-type]  # parametrized


def test_a_slice_is_written_without_the_rest_of_its_batch() -> None:
    whole = pa.record_batch({"x": np.arange(100_000)})
    part = whole.slice(50_000, 10)
    data = encode_batch(part)
    assert decode_batch(data) == part
    assert data.size < 2_000


def test_bytes_that_are_no_batch_are_refused(storage: CheckpointStorage) -> None:
    with pytest.raises(CorruptCheckpointError, match="is not an Arrow record batch"):
        decode_batch(b"not arrow")
    with BlockWriter(storage, epoch=1, name="a", inline_limit_bytes=0) as writer:
        writer.add(b"not arrow")
        (ref,) = writer.close()
    with pytest.raises(CorruptCheckpointError, match="is not a valid Arrow record batch") as caught:
        read_batch(storage, ref)
    assert caught.value.context["file"] == ref.file


def hostile_batches() -> dict[str, bytes]:
    """Batches that say of themselves what is not so; their bytes are in order otherwise."""
    strings = pa.record_batch({"k": ["abc", "de", "f"]})
    good = encode_batch(strings).to_pybytes()
    offsets = struct.pack("<4i", 0, 3, 5, 6)
    assert good.count(offsets) == 1
    schema = encode_batch(pa.record_batch({"plain": [1]})).to_pybytes()
    return {
        "offset out of the buffer": good.replace(offsets, struct.pack("<4i", 0, 3, 5, 2**30)),
        "negative offset": good.replace(offsets, struct.pack("<4i", 0, -(2**30), 5, 6)),
        "offsets that go backwards": good.replace(offsets, struct.pack("<4i", 0, 6, 1, 6)),
        "text that is none": good.replace(b"abcdef", b"\xff\xfe\xfddef"),
        "name that is no text": schema.replace(b"plain", b"\xff\xfe\xfd\xfc\xfb"),
        "no batch": good[: good.index(offsets) // 2],
    }


@pytest.mark.parametrize("kind", hostile_batches())
def test_a_batch_that_would_crash_its_reader_is_refused(
    storage: CheckpointStorage, kind: str
) -> None:
    data = hostile_batches()[kind]
    with pytest.raises(CorruptCheckpointError):
        decode_batch(data)
    with BlockWriter(storage, epoch=0, name="a", inline_limit_bytes=0) as writer:
        writer.add(data)
        (ref,) = writer.close()
    with pytest.raises(
        CorruptCheckpointError, match=r"not a valid Arrow.*checksum is right"
    ) as found:
        read_batch(storage, ref)
    assert found.value.context["file"] == ref.file

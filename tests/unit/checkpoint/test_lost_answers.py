"""An object store whose answers are lost or cut: no writer takes its own object for another's."""

from __future__ import annotations

from contextlib import closing

import pytest
from tests.support.object_store import s3_store

from godwit.checkpoint import object_store
from godwit.checkpoint.storage import CheckpointStorage
from godwit.model.errors import CheckpointError

pytest.importorskip("obstore")

LARGE = bytes(range(256)) * 4096 * 6  # two parts


def write_all(storage: CheckpointStorage) -> None:
    """Send a request of each kind, and check what is there."""
    storage.create_exclusive("a/created", b"ours")
    with pytest.raises(FileExistsError):
        storage.create_exclusive("a/created", b"other")
    storage.write_atomic("a/small", b"new")
    storage.write_atomic("a/large", LARGE)
    with closing(storage.open_output("a/parts")) as output:
        output.write(LARGE)
    sizes = {"a/created": 4, "a/large": len(LARGE), "a/parts": len(LARGE), "a/small": 3}
    assert storage.list("a") == sizes
    assert storage.read("a/large").equals(storage.read("a/parts"))
    assert storage.read("a/parts", len(LARGE) - 3).to_pybytes() == LARGE[-3:]
    assert storage.read("a/small", 1, 2).to_pybytes() == b"ew"
    storage.delete("a/small")
    assert "a/small" not in storage.list("a")


@pytest.mark.parametrize(
    "faults",
    [
        [
            ("lost", "PUT *a/created"),
            ("lost", "PUT *a/small"),
            ("lost", "PUT *a/large*partNumber=2"),
            ("lost", "POST *a/large?uploadId"),
            ("lost", "POST *a/parts?uploadId"),
            ("lost", "GET *list-type"),
            ("lost", "DELETE *a/small"),
        ],
        [
            ("conflict", "PUT *a/created"),
            ("cut", "POST *a/large?uploadId"),
            ("cut", "POST *a/parts?uploadId"),
            ("cut", "GET *list-type"),
            ("cut", "GET *a/parts"),
        ],
    ],
    ids=["lost", "cut"],
)
def test_a_request_that_was_carried_out_counts_though_its_answer_did_not_come(
    faults: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "PART_BYTES", 5 * 2**20)
    with s3_store(left := list(faults)) as uri:
        write_all(CheckpointStorage.open(uri))
    assert not left


def test_an_object_of_before_does_not_count_as_one_that_replaces_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(object_store, "PART_BYTES", 5 * 2**20)
    faults: list[tuple[str, str]] = []
    with s3_store(faults) as uri:
        storage = CheckpointStorage.open(uri)
        storage.write_atomic("a/large", LARGE)
        faults.append(("conflict", "PUT *a/large*partNumber=1"))
        with pytest.raises(Exception, match="failed while writing"):
            storage.write_atomic("a/large", LARGE[::-1])
        assert storage.read("a/large").to_pybytes() == LARGE


def test_an_upload_that_fails_without_an_object_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "PART_BYTES", 5 * 2**20)
    with s3_store([("conflict", "PUT *a/large*partNumber=1")]) as uri:
        storage = CheckpointStorage.open(uri)
        with pytest.raises(CheckpointError, match="409 Conflict"):
            storage.write_atomic("a/large", LARGE)
        assert storage.list("a") == {}

"""Credentials in a checkpoint's location stand in nothing that people read."""

from __future__ import annotations

import contextlib
import json
import logging
import pickle
import traceback
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs
import pytest

from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.journal import JournalWriter, read_last
from godwit.checkpoint.object_store import ObjectStore
from godwit.checkpoint.records import FlowIdentity
from godwit.checkpoint.storage import CheckpointStorage, ObjectStorage, RemoteStorage
from godwit.model import events
from godwit.model.errors import GodwitError
from godwit.model.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

URIS = [
    "s3://AKIA:hunter2@bucket/ck?endpoint_override=127.0.0.1:9",
    "s3a://AKIA:hunter2@bucket/ck?endpoint_override=127.0.0.1:9",
    "s3://bucket/ck?secret_key=hunter2",
    "s3://AKIA:hun/ter2@bucket/ck",
    "gs://bucket/ck?access_token=hunter2",
    "gs://me:hunter2@bucket/ck",
    "hdfs://me:hunter2@host:9/ck",
    "hdfs://me:hunter2@host:x/ck",
    "abfss://container:hunter2@account.dfs.core.windows.net/ck",
    "abfss://container@account.dfs.core.windows.net/ck?sas=hunter2",
    "abfss://:hunter2@account.blob.core.windows.net/c/ck",
    "foo://me:hunter2@host/ck",
]
PARTS = ["hunter2", "hun/ter2", "ter2"]


class Broken(pyarrow.fs.FileSystemHandler):  # type: ignore[misc]
    """A file system whose errors repeat the location, as clients of object stores do."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def _fail(self, *_args: object, **_kwargs: object) -> None:
        msg = f"cannot reach {self.uri}"
        raise OSError(msg)

    def get_type_name(self) -> str:
        return "broken"

    normalize_path = get_file_info = get_file_info_selector = create_dir = delete_dir = _fail
    delete_dir_contents = delete_root_dir_contents = delete_file = move = copy_file = _fail
    open_input_stream = open_input_file = open_output_stream = open_append_stream = _fail


class FailingStore(ObjectStore):
    """A store whose errors repeat the location."""

    def __init__(self, uri: str) -> None:
        super().__init__(None)
        self._uri = uri

    def _fail(self, *_args: object, **_kwargs: object) -> Any:
        msg = f"cannot reach {self._uri}"
        raise OSError(msg)

    create = put = open_writer = get = list = delete = _fail


def uses(storage: CheckpointStorage) -> Iterator[Callable[[], object]]:
    yield lambda: storage.create_exclusive("a", b"")
    yield lambda: storage.write_atomic("a", b"")
    yield lambda: storage.open_output("a")
    yield lambda: storage.read("a")
    yield lambda: storage.list("")
    yield lambda: storage.delete("a")
    yield lambda: CommitLog.open_read_only(storage)
    yield lambda: CommitLog.create_or_open(
        storage, FlowIdentity(name="f", num_key_groups=1), "r", retain_epochs=1
    )


def told(error: BaseException) -> str:
    """Everything that a log would show of an error, its causes included."""
    shown = "".join(traceback.format_exception(error))
    fields = f"{vars(error)} {error!r} {vars(pickle.loads(pickle.dumps(error)))}"
    # The frames' source lines are this file's own.
    return fields + "".join(line for line in shown.splitlines() if "Error" in line)


def secrets_in(text: str) -> list[str]:
    return [part for part in PARTS if part in text]


@pytest.mark.parametrize("uri", URIS)
def test_no_error_of_a_checkpoint_repeats_its_credentials(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(given: str) -> None:
        msg = f"cannot parse {given}"
        raise pa.ArrowInvalid(msg)

    monkeypatch.setattr("godwit.checkpoint.storage.open_object_store", refuse)
    with pytest.raises(GodwitError) as refused:
        CheckpointStorage.open(uri)
    assert secrets_in(told(refused.value)) == []
    filesystem = pyarrow.fs.PyFileSystem(Broken(uri))
    for storage in (
        RemoteStorage(filesystem, "bucket/ck", uri=uri, renames=False),
        ObjectStorage(uri, FailingStore(uri)),
    ):
        assert secrets_in(storage.uri) == []
        for use in uses(storage):
            with pytest.raises(GodwitError) as failed:
                use()
            assert secrets_in(told(failed.value)) == []


@pytest.mark.parametrize(
    "uri",
    ["s3://AKIA:hun/ter2@bucket/ck", "abfss://:hunter2@account.blob.core.windows.net/c/ck"],
)
def test_a_store_that_cannot_be_opened_is_refused_without_its_credentials(uri: str) -> None:
    with pytest.raises(GodwitError, match="cannot open this location") as refused:
        CheckpointStorage.open(uri)
    assert secrets_in(told(refused.value)) == []


def test_a_store_without_claims_is_refused_without_its_credentials() -> None:
    uri = "hdfs://me:hunter2@host:9/ck"
    storage = RemoteStorage(pyarrow.fs._MockFileSystem(), "ck", uri=uri, renames=False)
    with pytest.raises(GodwitError, match="cannot be created only") as refused:
        storage.create_exclusive("a", b"")
    assert secrets_in(told(refused.value)) == []


def test_a_storage_that_travels_is_opened_by_its_real_location(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[str] = []
    memory = pyarrow.fs._MockFileSystem()

    def from_uri(given: str) -> tuple[object, str]:
        opened.append(given)
        return memory, "ck"

    monkeypatch.setattr(pyarrow.fs, "FileSystem", type("Mock", (), {"from_uri": from_uri}))
    storage = CheckpointStorage.open("hdfs://me:hunter2@host:9/ck")
    again = pickle.loads(pickle.dumps(storage))
    assert opened == ["hdfs://me:hunter2@host:9/ck"] * 2
    assert again.uri == storage.uri == "hdfs://***@host:9/ck"


def test_errors_events_logs_and_the_command_line_hide_what_was_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.suppress(GodwitError):
        CheckpointStorage.open("foo://me:hunter2secret@host/ck")
    text = "Java says: foo://me:hunter2secret@host/ck/spark, password hunter2secret"
    error = GodwitError(text, remedy=text, details=[text], by={"a": text})
    assert "hunter2" not in told(error)
    failed = events.QueryFailed(epoch=1, at_s=1.0, name="q", error=text)
    assert "hunter2" not in f"{failed} {failed.describe()} {failed.to_dict()}"
    assert "hunter2" not in printable(text)
    storage = CheckpointStorage.open(tmp_path)
    writer = JournalWriter(storage, "r")
    writer.add("progress", {"error": text, "of": [{"deep": text}]})
    writer.flush()
    assert "hunter2" not in json.dumps(read_last(storage, 9, "progress", dict))
    logging.getLogger("godwit").warning("It is %s", text, exc_info=OSError(text))
    for record in caplog.records:  # as formatters do that look at the error themselves
        if record.exc_info:
            assert "hunter2" not in "".join(traceback.format_exception(*record.exc_info))
    assert "hunter2" not in caplog.text
    assert "foo://***@host/ck/spark" in caplog.text

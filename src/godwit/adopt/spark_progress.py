"""Progress of a stopped Spark query: its logs of offsets and commits, and those of its sources.

The logs are copied as Spark wrote them, with a batch that was planned and not committed, so Spark's
engine continues after them.  A flow may read the streams of a query in another order than the query
does: then the lines of the offsets, and the numbers of the sources' logs, are put in its order.

Source: `OffsetSeqLog` and `CommitLog` of Spark.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.ownership import stored_identity
from godwit.checkpoint.spark_log import SPARK, log_offset, offsets_in
from godwit.checkpoint.storage import CheckpointStorage
from godwit.model.errors import CheckpointError, CorruptCheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedQuery:
    """Progress of a Spark query in its checkpoint's logs."""

    query_id: str
    batch: int  # the last committed batch
    offsets: bytes  # its entry in the log of offsets
    # files of the logs that the query's engine reads at its next start: path → content
    files: Mapping[str, bytes]
    settings: Mapping[str, str]  # that the batch ran under
    closed_ms: int  # watermark that the batch removed state by
    watermark_ms: int  # that of the next batch


def read_progress(location: str) -> StoppedQuery:
    """Read the logs of a stopped Spark query.

    Raises `CheckpointError` if there is no Spark query, it has committed no batch, or its logs have
    a format that is not known.
    """
    storage = CheckpointStorage.open(location)
    metadata = _read_if_present(storage, "metadata")
    if metadata is None:
        raise CheckpointError(
            f"There is no checkpoint of a Spark query at {storage.uri!r}: the file 'metadata' is "
            "missing.",
            remedy="Give the checkpointLocation of the query.",
            uri=storage.uri,
        )
    done, planned = (_entry_numbers(storage, name) for name in ("commits", "offsets"))
    if not done:
        raise CheckpointError(
            f"The Spark query at {storage.uri!r} has committed no batch.",
            remedy="Start the query without from_spark_checkpoint(...).",
            uri=storage.uri,
        )
    batch = max(done)
    files: dict[str, bytes] = {}
    for directory, numbers in (("offsets", planned), ("commits", done)):
        for number in numbers:
            if number >= batch - 1:
                content = _read_if_present(storage, f"{directory}/{number}")
                assert content is not None, "it is listed"
                files[f"{directory}/{number}"] = content
    offsets = files.get(f"offsets/{batch}")
    if offsets is None:
        raise CheckpointError(
            f"The log of the Spark query at {storage.uri!r} has no offsets for its last batch, "
            f"{batch}.",
            remedy="Restore the file from a copy.",
            uri=storage.uri,
        )
    version, head = offsets.splitlines()[:2]
    lines = offsets_in(offsets)
    if version != b"v1":
        raise CheckpointError(
            f"The log of offsets at {storage.uri!r} has version {version.decode()!r}, not 'v1'.",
            remedy="Run the query once more with "
            "spark.sql.streaming.queryEvolution.enableSourceEvolution=false.",
            uri=storage.uri,
        )
    if any(log_offset(line) is not None for line in lines):
        for path in _source_log_files(storage, "sources"):
            content = _read_if_present(storage, path)
            if content is not None:
                files[path] = content
    begun = json.loads(head)
    ended = json.loads(files[f"commits/{batch}"].splitlines()[1])
    return StoppedQuery(
        query_id=str(json.loads(metadata)["id"]),
        batch=batch,
        offsets=offsets,
        files=files,
        settings=begun.get("conf", {}),
        closed_ms=int(begun.get("batchWatermarkMs", 0)),
        watermark_ms=int(ended.get("nextBatchWatermarkMs", 0)),
    )


def arranged(
    progress: StoppedQuery, query: Sequence[Any], flow: Sequence[Any], location: str
) -> StoppedQuery:
    """Return the progress of a query as that of a flow that reads the same streams.

    `query`, `flow`: the place of each line of offsets, as the stream that it reads. Raises
    `CheckpointError` if the log has other lines, or the flow reads another stream.
    """
    lines = offsets_in(progress.offsets)
    if len(lines) != len(query):
        raise CheckpointError(
            f"The checkpoint {location!r} belongs to another Spark query: its log has the "
            f"offsets of {len(lines)} streams, but this query reads {len(query)}.",
            remedy="Use the unchanged query that wrote it, and change it once it runs in Godwit.",
            uri=location,
        )
    before, after = list(dict.fromkeys(query)), list(dict.fromkeys(flow))
    assert {*before} == {*after}, "the flow reads the streams of the query"
    if query == flow:
        return progress
    places = [query.index(stream) for stream in flow]
    numbers = {before.index(stream): number for number, stream in enumerate(after)}
    files: dict[str, bytes] = {}
    for path, content in progress.files.items():
        directory, _, name = path.partition("/")
        if directory == "offsets":
            content = _entry_with_lines(content, places)  # noqa: PLW2901
        if directory == "sources":
            number, _, name = name.partition("/")
            path = f"sources/{numbers[int(number)]}/{name}"  # noqa: PLW2901
        files[path] = content
    return replace(progress, files=files, offsets=_entry_with_lines(progress.offsets, places))


def _entry_with_lines(entry: bytes, places: Sequence[int]) -> bytes:
    """Return an entry of the log of offsets with the lines that it has at some places."""
    lines = offsets_in(entry)
    head = entry.splitlines()[: len(entry.splitlines()) - len(lines)]
    return b"\n".join([*head, *(lines[place] for place in places)])


def began_in_spark(checkpoint: str) -> bool:
    """Return whether a checkpoint has begun with the state of a Spark query."""
    identity = stored_identity(CheckpointStorage.open(checkpoint))
    return identity is not None and identity.batches_before > 0


def has_epochs(checkpoint: str, former: str) -> bool:
    """Return whether a checkpoint has begun with the state of a Spark query.

    `former`: the checkpoint of that query. Raises `CheckpointError` if it has begun without.
    """
    storage = CheckpointStorage.open(checkpoint)
    identity = stored_identity(storage)
    if identity is None or CommitLog.open_read_only(storage).latest is None:
        return False
    if not identity.batches_before:
        raise CheckpointError(
            f"The checkpoint {storage.uri!r} has epochs that started without the state of the "
            f"Spark query at {former!r}.",
            remedy="Give a new checkpointLocation, or omit from_spark_checkpoint(...).",
            uri=storage.uri,
        )
    return True


def copy_logs(progress: StoppedQuery, storage: CheckpointStorage) -> None:
    """Write the logs of Spark's engine into a new checkpoint."""
    for directory in _log_directories(storage):
        for path in storage.list(directory):
            storage.delete(path)
    for path, content in progress.files.items():
        storage.write_atomic(f"{SPARK}/{path}", content)


def _log_directories(storage: CheckpointStorage) -> list[str]:
    """Return the directories of Spark's logs in a checkpoint: a start that failed may have some."""
    sources = [f"{SPARK}/sources/{number}" for number in range(64)]
    return [f"{SPARK}/offsets", f"{SPARK}/commits", *(d for d in sources if storage.list(d))]


def _read_if_present(storage: CheckpointStorage, path: str) -> bytes | None:
    """Return the content of a file; ``None`` if it is missing."""
    try:
        content: bytes = storage.read(path).to_pybytes()
    except CorruptCheckpointError:
        return None
    return content


def _entry_numbers(storage: CheckpointStorage, directory: str) -> list[int]:
    """Return the numbers of the entries of a log."""
    names = (path.rpartition("/")[2] for path in storage.list(directory))
    return sorted(int(name) for name in names if name.isdecimal())


def _source_log_files(storage: CheckpointStorage, directory: str) -> list[str]:
    """Return the files of the sources' logs, without Hadoop's checksums and temporary files."""
    paths = [p for number in range(64) for p in storage.list(f"{directory}/{number}")]
    return [path for path in paths if path.rpartition("/")[2].removesuffix(".compact").isdecimal()]

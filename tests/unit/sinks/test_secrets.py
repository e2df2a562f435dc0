"""Secrets in URIs and options are never shown, however badly they are written."""

from __future__ import annotations

import pickle
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from tests.support.epoch_rows import context

import godwit as gw
from godwit.connect.files.parquet_directory import latest_epoch
from godwit.model.errors import SinkError
from godwit.model.secrets import Secrets, shown_uri
from godwit.sinks.file_systems import open_file_system

if TYPE_CHECKING:
    from collections.abc import Callable

URIS = [
    "s3://AKIA:hunter2@bucket/out",
    "s3://AKIA:hun/ter2@bucket/out",
    "s3://AKIA:hunter2@bucket:9x/out",
    "s3://AKIA:h unter2@bucket/out",
    "s3://AKIA:@hunter2@bucket/out",
    "s3://AKIA:hunter%32@bucket/out",
    "s3://AKIA:hun?ter2@bucket/out",
    "s3://bucket/out?secret_key=hunter2",
    "s3://bucket/out?region=eu&hunter2",
    "s3a://AKIA:hunter2@bucket?bad=hunter2",
    "gs://me:hunter2@bucket/out",
    "abfs://container:hunter2@account/out?zz=1",
    "hdfs://me:hunter2@host:x/out",
    "foo://me:hunter2@host/out",
    "file://me:hunter2@host/out",
]
PARTS = ["hunter2", "hun/ter2", "h unter2", "ter2", "hunter%32", "unter2"]


def refusal(use: Callable[[], object]) -> SinkError | None:
    try:
        use()
    except SinkError as error:
        return error
    return None


def told(error: BaseException) -> str:
    """Everything that a log would show of an error, its causes included."""
    shown = "".join(traceback.format_exception(error))
    fields = f"{vars(error)} {error!r} {vars(pickle.loads(pickle.dumps(error)))}"
    # The frames' source lines are this file's own.
    return fields + "".join(line for line in shown.splitlines() if "Error" in line)


@pytest.mark.parametrize("uri", URIS)
def test_a_uri_is_shown_without_its_secrets(uri: str) -> None:
    shown = shown_uri(uri)
    assert not any(part in shown for part in PARTS)
    assert shown.startswith(uri.split("://", maxsplit=1)[0])


def test_a_file_system_that_cannot_be_opened_is_named_without_secrets() -> None:
    def failure(uri: str) -> BaseException | None:
        try:
            return refusal(lambda: open_file_system(uri))
        except OSError as raised:  # of the library of this store
            return raised

    with ThreadPoolExecutor() as pool:  # some look for their host for seconds
        failures = [*pool.map(failure, URIS)]
    for uri, error in zip(URIS, failures, strict=True):
        assert error is None or not any(part in told(error) for part in PARTS), uri


@pytest.mark.parametrize("uri", [uri for uri in URIS if not uri.startswith(("s3", "gs"))])
def test_a_sink_says_nothing_of_the_secrets_in_its_uri(uri: str) -> None:
    uses: list[Callable[[], object]] = [lambda: latest_epoch(uri)]
    if uri.startswith(("file:", "foo:")):  # it is refused before anything is opened
        uses.append(lambda: gw.sinks.parquet(uri))
    else:
        sink = gw.sinks.parquet(uri)
        assert not any(part in repr(sink) for part in PARTS)
        uses.append(lambda: sink.open(context()))
    for use in uses:
        error = refusal(use)
        assert error is not None
        assert not any(part in told(error) for part in PARTS)


@pytest.mark.parametrize(
    "uri", ["out", "/data/by@plane", "s3://bucket/by@plane", "file:///a/b@c", "s3://b/x?region=eu"]
)
def test_what_is_not_confidential_stays(uri: str) -> None:
    assert shown_uri(uri) == uri
    assert Secrets.of_uri(uri) == Secrets()


def test_options_are_confidential_by_their_names() -> None:
    secrets = Secrets.of_values(
        {"aws_secret_access_key": "a1", "AZURE_STORAGE_SAS_TOKEN": "b2", "region": "eu"}
    )
    assert secrets.hide("a1 in eu, b2! (a11)") == "*** in eu, ***! (a11)"


def test_an_error_that_repeats_a_secret_is_not_shown_as_a_cause() -> None:
    secrets = Secrets.of_uri("s3://me:hunter2@bucket")
    outer = OSError("cannot connect")
    assert secrets.cause(outer) is outer
    outer.__cause__ = OSError("as me:hunter2@")
    assert secrets.cause(outer) is None

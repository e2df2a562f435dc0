"""Creating a file on an object store only if there is none: one request that the store decides.

Problem: ``pyarrow.fs`` writes to S3, Google Cloud Storage and Azure, but has no way to say "only if
there is none" (``If-None-Match: *``, ``ifGenerationMatch=0``); looking first and comparing after
lets two drivers commit one epoch.  So this one request goes through another client, `obstore`_.

Invariant: before the first claim, the store has refused one of two creations of the same name.
Some stores that speak S3 accept the condition and ignore it; they are found out here.

.. _obstore: https://developmentseed.org/obstore/
"""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit
from uuid import uuid4

from godwit.model.errors import CheckpointError

if TYPE_CHECKING:
    from typing import Any

__all__ = ["Claims", "ObjectStoreClaims", "claims_for"]

_SCHEMES = frozenset({"s3", "gs", "gcs", "abfs", "abfss"})
_PROBE = "claims/probe-"


class Claims(Protocol):
    """Creates files that do not exist yet, one writer each."""

    def create(self, path: str, data: bytes) -> None:
        """Create a file; raise `FileExistsError` if there is one, `OSError` if the store fails."""


class ObjectStoreClaims:
    """Conditional puts by ``obstore``."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._probed = False

    def create(self, path: str, data: bytes) -> None:
        """See `Claims.create`."""
        if not self._probed:
            self._probe()
            self._probed = True
        if not self._created(path, data):
            raise FileExistsError(path)

    def _probe(self) -> None:
        path = f"{_PROBE}{uuid4().hex}"
        first, second = self._created(path, b"1"), self._created(path, b"2")
        self._store.delete(path)
        if not first or second:
            raise CheckpointError(
                "The object store of the checkpoint ignores the condition that a file is created "
                "only if there is none, so two drivers could commit one epoch without noticing.",
                remedy="Use a store that honours If-None-Match, or, if no second driver can ever "
                "be started, vouch for it with flow.start(single_driver=True).",
            )

    def _created(self, path: str, data: bytes) -> bool:
        errors = import_module("obstore.exceptions")
        try:
            self._store.put(path, data, mode="create")
        except (errors.AlreadyExistsError, errors.PreconditionError):
            # The store may have carried out a request whose answer was lost; what we wrote is
            # unlike what anybody else writes.
            return bytes(self._store.get(path).bytes()) == data
        except errors.BaseError as error:
            raise OSError(str(error)) from error
        return True


def claims_for(uri: str) -> Claims | None:
    """Conditional puts for the object store at `uri`.

    ``None`` if there are none for it, or its client is not installed.
    """
    parts = urlsplit(re.sub(r"^s3[an]://", "s3://", uri))
    if parts.scheme not in _SCHEMES or find_spec("obstore") is None:
        return None
    scheme = "gs" if parts.scheme == "gcs" else parts.scheme
    host = parts.netloc.rpartition("@")[2] if scheme == "s3" else parts.netloc
    config, client = _configuration(scheme, dict(parse_qsl(parts.query)))
    if scheme == "s3" and parts.username:
        config["access_key_id"] = unquote(parts.username)
        config["secret_access_key"] = unquote(parts.password or "")
    from_url = import_module("obstore.store").from_url
    try:
        store = from_url(
            f"{scheme}://{host}{parts.path}", config=config, client_options=client or None
        )
    except (ValueError, import_module("obstore.exceptions").BaseError) as error:
        msg = f"its client cannot open this location: {error}"
        raise OSError(msg) from None
    return ObjectStoreClaims(store)


def _configuration(scheme: str, given: dict[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Say what the parameters of Arrow's URI mean for the other client."""
    config: dict[str, Any] = {}
    client: dict[str, Any] = {}
    if scheme != "s3":
        return config, client
    config["disable_bulk_delete"] = True  # one DELETE is understood by more stores
    if "region" in given:
        config["region"] = given["region"]
    if "endpoint_override" in given:
        protocol = given.get("scheme", "https")
        config["endpoint"] = f"{protocol}://{given['endpoint_override']}"
        client["allow_http"] = protocol == "http"
        config["virtual_hosted_style_request"] = given.get("force_virtual_addressing") == "true"
    return config, client

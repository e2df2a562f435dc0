"""Schemes of the locations of Delta tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMES: Final[Mapping[str, str]] = {
    **{scheme: scheme for scheme in ("s3", "s3a", "gs", "abfs", "abfss", "hdfs", "viewfs")},
    **{scheme: scheme for scheme in ("az", "azure", "adl", "memory")},
    "s3n": "s3",
    "gcs": "gs",
}
"""Scheme of a location → how the library deltalake spells it."""

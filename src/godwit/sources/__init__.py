"""Sources of Godwit's own: rows come as Arrow batches, without Spark's micro-batch engine.

The contract of all sources is in `godwit.sources.source`, the first file to read.
"""

from __future__ import annotations

from godwit.sources.source import Lag, Position, Source, Split

__all__ = ["Lag", "Position", "Source", "Split"]

"""Streaming queries of Spark's, run by Godwit as they are: `write_stream`, `sql`, `read_plan`."""

from __future__ import annotations

from godwit.adopt.explain import explain
from godwit.adopt.writer import StreamWriter, read_plan, sql, write_stream

__all__ = ["StreamWriter", "explain", "read_plan", "sql", "write_stream"]

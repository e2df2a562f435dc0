"""Text files, read like by Spark's source ``text``.

A line ends with a line feed, a carriage return, or both; an empty one is a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from godwit.adopt.read_texts import ROWS
from godwit.connect.files.text_formats import TextFormat

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from godwit.connect.files.directory import Directory
    from godwit.connect.files.file_formats import BadLine, FileRange


class SparkText(TextFormat):
    """Lines of text in UTF-8."""

    name = "text"
    has_columns = False

    def __init__(self) -> None:
        super().__init__(skips_bad=False)

    def read(
        self,
        directory: Directory,
        part: FileRange,
        fields: Sequence[pa.Field],
        known: Container[str] = (),
    ) -> Iterator[pa.RecordBatch | BadLine]:
        del known
        for block in self._blocks(directory, part):
            text = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n").removesuffix(b"\n")
            whole = pa.array([text], pa.binary()).cast(pa.string())  # raises if it is not UTF-8
            lines = pc.split_pattern(whole, "\n").values
            (field,) = fields or [ROWS]
            yield pa.RecordBatch.from_arrays([lines], schema=pa.schema([field]))

    def max_rows(self, directory: Directory, part: FileRange) -> int | None:
        """Count the ends of lines in a range; ``None`` if the file cannot be divided."""
        if not self._is_divisible(directory, part.file):
            return None
        blocks = self._blocks(directory, part)
        return sum(block.count(b"\n") + block.count(b"\r") + 1 for block in blocks)

    def _infer(self, block: bytes) -> pa.Schema:
        del block
        return pa.schema([("value", pa.string())])

"""An ordinary stateful stream with a hot key, whose event log is kept in every form Spark has.

Run by itself, since Spark fixes how it logs when its context is made.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  PySpark's habit
from pyspark.sql.streaming.state import GroupStateTimeout

if TYPE_CHECKING:
    from collections.abc import Iterator

MS_PER_ROW = 2
COPIES = ("lz4", "snappy", "zstd", "lzf")


def slow(key: tuple[str], pieces: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """Take a set time for each row, so that the hot key's partition is the slow one."""
    rows = sum(len(piece) for piece in pieces)
    time.sleep(rows * MS_PER_ROW / 1e3)
    seen = (state.get[0] if state.exists else 0) + rows
    state.update((seen,))
    yield pd.DataFrame({"k": [key[0]], "n": [seen]})


def main(directory: Path) -> None:
    (directory / "logs").mkdir(parents=True)
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("hot key")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "3")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", (directory / "logs").as_uri())
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    rows = [("hot",)] * 300 + [(f"k{n}",) for n in range(60)]
    for _ in range(2):
        spark.createDataFrame(rows, "k string").coalesce(1).write.mode("append").parquet(
            str(directory / "in")
        )
    stream = (
        spark.readStream.schema("k string")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(directory / "in"))
        .groupBy("k")
        .applyInPandasWithState(
            slow, "k string, n long", "n long", "update", GroupStateTimeout.NoTimeout
        )
        .where(F.col("n") > 0)
    )
    query = (
        stream.writeStream.queryName("hot")
        .outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(directory / "ck"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    copy_by_codecs(spark, directory)
    spark.stop()


def copy_by_codecs(spark: SparkSession, directory: Path) -> None:
    """Write a text by each of Spark's own codecs, as it would write its log."""
    jvm: Any = spark._jvm
    conf = spark.sparkContext._jsc.sc().conf()
    text = directory / "text"
    text.write_bytes(b'{"Event":"Nothing"}\n' * 20_000)
    for name in COPIES:
        codec = jvm.org.apache.spark.io.CompressionCodec.createCodec(conf, name)
        out = codec.compressedOutputStream(jvm.java.io.FileOutputStream(f"{directory}/text.{name}"))
        jvm.java.nio.file.Files.copy(jvm.java.io.File(str(text)).toPath(), out)
        out.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

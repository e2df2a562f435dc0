"""`godwit archive-classes`: have the JVMs of local clusters start sooner."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from godwit.cluster.spark.platform.class_archive import archive_path, write_archive
from godwit.model.wording import human_bytes

if TYPE_CHECKING:
    import argparse

__all__ = ["add_archive_classes_command"]


def add_archive_classes_command(subparsers: Any) -> None:
    """Add ``archive-classes`` to the command line; the function to run is in ``args.run``."""
    parser = subparsers.add_parser(
        "archive-classes",
        help="have local clusters start sooner, once per environment",
        description="Write an archive of the classes that Spark's JVMs load (Java's class data "
        "sharing) into this Python environment: about 200 MB, in about half a minute. From then "
        "on the JVMs of local clusters, such as that of `godwit demo`, start with about half the "
        "work. It is made of one Java and one Spark: after an upgrade of either, run this again. "
        "Results never depend on it.",
    )
    parser.add_argument(
        "--remove", action="store_true", help="remove the archive instead, and those of before"
    )
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    path = archive_path()
    if args.remove:
        for found in [] if path is None else sorted(path.parent.glob("spark-classes-*.jsa")):
            found.unlink()
            print(f"Removed {found}.")
        return 0
    if path is not None and path.exists():
        print(f"There is one already: {path} ({human_bytes(path.stat().st_size)}).")
        return 0
    print("Archiving Spark's classes; this takes about half a minute.", flush=True)
    began_s = time.monotonic()
    path = write_archive()
    took_s = time.monotonic() - began_s
    print(f"Wrote {path} ({human_bytes(path.stat().st_size)}) in {took_s:.0f} s.")
    return 0

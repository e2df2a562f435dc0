"""Spark's classes, archived, so that the JVMs of a small cluster start in less time.

Problem: each JVM reads, checks and links some 15,000 classes out of Spark's jars; a cluster on one
machine starts eight of them at once, on few cores.

The idea: Java's class data sharing.  One JVM does a little of everything that Godwit asks of Spark
and writes what it has loaded when it exits; others map that file.

Invariants: the file's name tells which Java and which jars it was made of, so none is used with
others, and Java itself looks once more and goes without where something differs.  A file is whole
or not there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from godwit.model.errors import ClusterError

__all__ = ["FRUGAL", "archive_path", "frugal_options", "spark_home", "write_archive"]

FRUGAL = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Options of JVMs that share few cores: without the best compiler and the largest collector."""

_TIMEOUT_S = 600.0


def spark_home() -> Path:
    """Directory of the Spark that is started here."""
    if named := os.environ.get("SPARK_HOME"):
        return Path(named)
    # Not imported: commands that start nothing ask for it as well.
    found = find_spec("pyspark")
    origin = None if found is None else found.origin
    assert origin is not None, "Godwit depends on PySpark."
    return Path(origin).parent


def frugal_options() -> str:
    """Options of JVMs that share few cores, with the archive of Spark's classes if there is one."""
    path = archive_path()
    if path is None or not path.exists() or any(c.isspace() for c in str(path)):
        return FRUGAL
    return f"{FRUGAL} -XX:SharedArchiveFile={path} -Xlog:cds*=off"


def archive_path() -> Path | None:
    """Where the archive for this Java and this Spark is, or would be; ``None`` without Java."""
    java = _java_home()
    if java is None:
        return None
    made_of = hashlib.sha256(os.fsencode(java))
    for file in (java / "release", *sorted((spark_home() / "jars").glob("*.jar"))):
        if file.exists():
            state = file.stat()
            made_of.update(f"{file}\0{state.st_size}\0{state.st_mtime_ns}\n".encode())
    name = f"spark-classes-{made_of.hexdigest()[:16]}.jsa"
    return Path(sys.prefix) / "share" / "godwit" / name


def write_archive() -> Path:
    """Write the archive, in the environment of this Python, and return its path.

    Raises
    ------
    ClusterError
        If there is no Java, the directory cannot be written, or the JVM writes none.
    """
    path = archive_path()
    if path is None:
        raise ClusterError(
            "There is no `java` on the PATH nor in JAVA_HOME, so nothing can be archived.",
            remedy="Install Java 17 or newer (on Debian and Ubuntu: apt install "
            "openjdk-17-jre-headless) or set JAVA_HOME.",
        )
    unfinished = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        told = _train(unfinished)
        if not unfinished.exists():
            raise ClusterError(
                f"Java wrote no archive of Spark's classes to {path}. The end of what it said:\n"
                f"{told}\n",
                remedy="Nothing needs the archive: without it JVMs only take longer to start.",
            )
        unfinished.replace(path)
    except OSError as error:
        raise ClusterError(
            f"The archive of Spark's classes cannot be written to {path}: {error}",
            remedy="Use a Python environment that you may write to.",
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def _train(path: Path) -> str:
    """Run the program whose JVM writes the archive; return the end of what it said."""
    try:
        done = subprocess.run(  # noqa: S603  this very Python
            [sys.executable, "-m", "godwit.cluster.spark.platform.class_training", str(path)],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"It was not done after {_TIMEOUT_S:.0f} s."
    return "\n".join((done.stdout + done.stderr).splitlines()[-15:])


def _java_home() -> Path | None:
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin/java").exists():
        return Path(home).resolve()
    found = shutil.which("java")
    return None if found is None else Path(found).resolve().parents[1]

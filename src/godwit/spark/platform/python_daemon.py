"""PySpark's Python daemon, with everything imported that workers need before it forks them.

An executor forks a Python process for every core from one daemon.  Loading Arrow and Godwit takes
each of them most of a second of a core, in the very first epochs; loaded before the fork it takes
one, and its memory is shared.  Ask for it with ``spark.python.daemon.module=
godwit.spark.platform.python_daemon`` where the executors' Python has Godwit when it starts.
"""

from __future__ import annotations

import gc
from importlib import import_module

gc.disable()  # imported modules stay, and the first epoch waits for this

import pyspark.worker  # noqa: E402, F401  loaded for the workers
from pyspark.daemon import manager  # noqa: E402

import godwit.spark.stages.stages  # noqa: E402, F401

import_module("godwit.library.binding")  # and with it the operators

if __name__ == "__main__":
    gc.collect()
    gc.freeze()  # the workers' searches for reference cycles leave shared memory alone
    gc.enable()
    manager()

"""Python UDFs, called in this process by the code of PySpark's worker.

So a function is unpickled, called and checked, and what it returns is converted, as Spark does it.
PySpark's worker reads the functions of a task once, and so does `worker_function` for each call of
it: a function that remembers something begins again with every epoch.
"""

from __future__ import annotations

import inspect
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class PickledFunction:
    """A Python UDF as PySpark pickled it."""

    commands: tuple[bytes, ...]  # several: each is called with the result of the one before
    positions: tuple[int, ...]  # of its arguments, among the columns
    keywords: tuple[tuple[str, int], ...] = ()  # name → position of arguments by name


def can_call() -> bool:
    """Return whether this version of PySpark has a supported worker."""
    from pyspark.worker import read_udfs  # noqa: PLC0415  slow to load

    return "udf_info_list" in inspect.signature(read_udfs).parameters


def worker_function(
    functions: Sequence[PickledFunction],
    eval_type: int,
    *,
    settings: Mapping[str, str],
    arguments: str,
    broadcasts: Mapping[int, bytes],
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return the function of a Spark task: from rows, or Arrow batches, to results.

    `eval_type`: one of ``PythonEvalType``. `settings`: of the session. `arguments`: types of the
    columns, a struct in JSON. `broadcasts`: number of a broadcast variable → its pickled value.
    """
    from pyspark.worker import EvalConf, RunnerConf, read_udfs  # noqa: PLC0415  slow to load
    from pyspark.worker_message import UDFInfo  # noqa: PLC0415
    from pyspark.worker_util import pickleSer  # noqa: PLC0415

    _register(broadcasts)
    infos = [
        UDFInfo(
            udfs=[memoryview(command) for command in function.commands],
            args=list(function.positions),
            kwargs=dict(function.keywords),
            result_id=0,  # for profilers, which are off
        )
        for function in functions
    ]
    conf, types = RunnerConf(dict(settings)), EvalConf({"input_type": arguments})
    read: Any = read_udfs  # without types
    of_task = read(pickleSer, infos, eval_type, conf, types)[0]
    return lambda rows: of_task(0, iter(rows))


def _register(broadcasts: Mapping[int, bytes]) -> None:
    """Register the broadcast variables that functions refer to."""
    from pyspark.core.broadcast import Broadcast, _broadcastRegistry  # noqa: PLC0415

    for number, pickled in broadcasts.items():
        if number not in _broadcastRegistry:
            file: Any = io.BytesIO(pickled)  # declared as a text
            _broadcastRegistry[number] = Broadcast(sock_file=file)

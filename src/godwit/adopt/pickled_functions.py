"""Python functions that PySpark pickled into a plan, and the broadcast variables in them.

PySpark broadcasts a function of more than 1 MB: its command is then a reference to a broadcast
variable that has the command.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark import cloudpickle

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_FROM_ID: Final = ("pyspark.core.broadcast", "_from_id")
"""Function that unpickles a broadcast variable."""


@dataclass(frozen=True, slots=True)
class CarriedValue:
    """A broadcast variable inside a function, for functions that are pickled again."""

    value: Any


def broadcasts_of(function: Any) -> dict[int, bytes]:
    """Return the variables that a ``PythonFunction`` refers to: number → pickled value.

    Raises the JVM's error for a variable that is destroyed.
    """
    variables = function.broadcastVars()
    return {
        int(variable.id()): Path(str(variable.value().path())).read_bytes()
        for variable in map(variables.get, range(variables.size()))
    }


def unpickled(command: bytes, broadcasts: Mapping[int, bytes]) -> Any:
    """Return what a command has, with the values of the broadcast variables in it."""

    def carried(number: int) -> CarriedValue:
        """Return a variable."""
        return CarriedValue(cloudpickle.loads(broadcasts[number]))

    result = _Unpickler(io.BytesIO(command), carried).load()
    return unpickled(result.value, broadcasts) if isinstance(result, CarriedValue) else result


class _Unpickler(pickle.Unpickler):
    """Unpickler of broadcast variables as `CarriedValue`s."""

    def __init__(self, file: io.BytesIO, carried: Callable[[int], CarriedValue]) -> None:
        super().__init__(file)
        self._carried = carried

    def find_class(self, module_name: str, global_name: str) -> Any:
        """Return the object of a name."""
        if (module_name, global_name) == _FROM_ID:
            return self._carried
        return super().find_class(module_name, global_name)

"""Functions of a plan, as PySpark pickles them, with the broadcast variables in them."""

from __future__ import annotations

import pickle
from typing import Any

from pyspark.core.broadcast import _from_id

from godwit.adopt.pickled_functions import unpickled
from godwit.adopt.spark_functions import dumps


class _Reference:
    """What a broadcast variable is pickled as."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_id, (self._number,)


def test_a_function_has_the_values_of_its_broadcast_variables_and_may_be_pickled_again() -> None:
    names: Any = _Reference(3)
    function = unpickled(dumps((lambda n: names.value[n], None)), {3: pickle.dumps({1: "one"})})[0]
    assert function(1) == "one"
    assert pickle.loads(dumps(function))(1) == "one"


def test_a_function_that_is_broadcast_itself_is_read_from_its_variable() -> None:
    inner = dumps((len, None))
    assert unpickled(pickle.dumps(_Reference(5)), {5: pickle.dumps(inner)}) == (len, None)

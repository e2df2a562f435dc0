"""Settings of ``async def`` functions per key, and the choice of the code that calls them.

How they are called is in `godwit.library.asynchronous_calls`, which is imported where some are:
an event loop takes longer to import than a small test takes to run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from godwit.model.errors import InvalidFlowError
from godwit.model.frames import user_class
from godwit.model.naming import check_number, function_name, type_name
from godwit.model.signatures import is_asynchronous
from godwit.time.durations import Duration, microseconds

if TYPE_CHECKING:
    from collections.abc import Sequence


@user_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Async:
    """Settings of ``async def`` functions of ``process``.

    Pass it as ``process(..., asynchronous=gw.types.Async(...))``.

    Attributes
    ----------
    capacity
        Maximum number of keys of one lane (parallel task) whose functions run concurrently. So a
        service gets up to this many requests at once, times the number of lanes.
    timeout
        Maximum time of one call of the function, as text such as ``"2 seconds"``;
        then the call is cancelled, and counts as failed with a `TimeoutError`.
    retries
        Maximum number of further calls for a key after a failed one; if the last one fails too, the
        epoch fails.
    backoff
        Time to wait before the first further call; it doubles before each one after that.
    retry_on
        Exception class, or tuple of classes, after which the function is called again for the key;
        other exceptions fail the epoch at once.
    resources
        Name → function without arguments that creates an object to keep between epochs, such as a
        session: ``{"session": aiohttp.ClientSession}``. It is called once per process of a lane, on
        the event loop. If it returns a context manager, this is entered; if it returns an
        awaitable, this is awaited. The result is passed to the functions as an argument of this
        name.

    Raises
    ------
    InvalidFlowError
        If a setting has a wrong value.

    Examples
    --------
    >>> gw.types.Async(capacity=200, timeout="2 seconds", retries=5).capacity
    200
    """

    capacity: int = 100
    timeout: Duration = "30 seconds"
    retries: int = 3
    backoff: Duration = "100 milliseconds"
    retry_on: type[Exception] | tuple[type[Exception], ...] = Exception
    resources: Mapping[str, Callable[[], Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        what = "The setting {} of gw.types.Async"
        for name, least in (("capacity", 1), ("retries", 0)):
            value = getattr(self, name)
            check_number(what.format(name), value, least=least, error=InvalidFlowError)
        microseconds(self.timeout, what.format("timeout"), least=1)
        microseconds(self.backoff, what.format("backoff"), least=0)
        kinds = self.retry_on if isinstance(self.retry_on, tuple) else (self.retry_on,)
        if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
            raise InvalidFlowError(
                f"The setting retry_on of gw.types.Async is {self.retry_on!r}.",
                remedy="Give a class of errors, or a tuple of them, as in retry_on=OSError.",
            )
        if not isinstance(self.resources, Mapping) or not all(
            isinstance(name, str) and name.isidentifier() and callable(open_resource)
            for name, open_resource in self.resources.items()
        ):
            raise InvalidFlowError(
                f"The setting resources of gw.types.Async is {self.resources!r}.",
                remedy="Give names and functions without arguments, as in "
                'resources={"session": aiohttp.ClientSession}.',
            )

    @property
    def timeout_s(self) -> float:
        """The setting `timeout` in seconds: maximum time of one call.

        Examples
        --------
        >>> gw.types.Async(timeout="2 seconds").timeout_s
        2.0
        """
        return microseconds(self.timeout, "The time-out", least=1) / 1e6

    @property
    def backoff_s(self) -> float:
        """The setting `backoff` in seconds: time to wait before the first further call.

        Examples
        --------
        >>> gw.types.Async(backoff="250 milliseconds").backoff_s
        0.25
        """
        return microseconds(self.backoff, "The back-off", least=0) / 1e6


def settings_for(
    operator: str, settings: Any, functions: Sequence[Callable[..., Any]]
) -> Async | None:
    """Return the `Async` settings of an operator's functions; ``None`` if none is an ``async def``.

    Raises `InvalidFlowError` if `settings` has a wrong type, or is given without an ``async def``.
    """
    awaited = any(map(is_asynchronous, functions))
    if settings is not None and not isinstance(settings, Async):
        raise InvalidFlowError(
            f"Operator {operator!r} was given a value of type {type_name(settings)} for "
            "asynchronous=.",
            remedy="Give settings, as in asynchronous=gw.types.Async(capacity=200).",
            operator=operator,
        )
    if settings is not None and not awaited:
        names = " and ".join(repr(function_name(function)) for function in functions)
        raise InvalidFlowError(
            f"Operator {operator!r} has asynchronous=, and {names} of it "
            f"{'is a plain function' if len(functions) == 1 else 'are plain functions'}.",
            remedy="Define the function by async def, or leave asynchronous= out.",
            operator=operator,
        )
    if not awaited:
        return None
    return Async() if settings is None else settings

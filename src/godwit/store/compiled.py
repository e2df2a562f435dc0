"""Loops over rows that Numba compiles to machine code, each beside NumPy code that does the same.

NumPy needs several passes, each with an array of its own, where a loop needs one.  Yet Numba
takes a second of CPU to load machine code, and more to compile it, so a process uses NumPy until
it has had enough rows for that to pay, and until a thread has loaded the machine code.  Numba's
cache keeps it, beside the source or in the user's cache directory; where it cannot be read or
written, the process compiles, and where Numba is missing or fails, NumPy remains.

Invariants: results do not depend on whether a kernel is used.  A kernel checks bounds where NumPy
would, since Numba does not: a damaged file raises an error and no signal.  To fork or end a
process waits until no step of the loading is under way; a forked process loads for itself.

`GODWIT_COMPILED`: ``off`` for NumPy alone, ``now`` to load at the first row and wait.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import threading
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar

from godwit.model.errors import InvalidFlowError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VARIABLE: Final = "GODWIT_COMPILED"
"""Environment variable: ``off``, ``now``, or nothing."""
MODES: Final = ("", "off", "now")
PAYING_ROWS: Final = 20_000_000
"""Rows of all calls of all kernels after which loading begins.

NumPy has then taken some 10 ns a row longer, a fifth of what loading takes.
"""

_P = ParamSpec("_P")
_R = TypeVar("_R")
_logger = logging.getLogger("godwit")


def kernel(signature: str) -> Callable[[Callable[_P, _R]], Kernel[_P, _R]]:
    """Make a function a kernel; it may call only what Numba compiles.

    `signature`: Numba's types of result and parameters, such as ``int64(uint64[::1])``; see
    `read_only`. Numba's cache knows only the file of the function, so what it calls is there too.
    """

    def decorated(function: Callable[_P, _R]) -> Kernel[_P, _R]:
        """Return the kernel of a function."""
        return Kernel(function, signature)

    return decorated


def read_only(dtype: str, *, anywhere: bool = False) -> str:
    """Return Numba's type of a one-dimensional array that a kernel only reads.

    `anywhere`: elements may have any distance, and any address.
    """
    layout = "'A', True, aligned=False" if anywhere else "'C', True"
    return f"Array({dtype}, 1, {layout})"


class Kernel(Generic[_P, _R]):
    """A loop over rows that is compiled, or is not yet; see `ready`."""

    __slots__ = ("_compiled", "_signature", "function")

    def __init__(self, function: Callable[_P, _R], signature: str) -> None:
        self.function, self._signature = function, signature
        self._compiled: Callable[_P, _R] | None = None
        LOADER.kernels.append(self)

    def ready(self, rows: int) -> Callable[_P, _R] | None:
        """Return the machine code for a call with this number of rows; ``None``: use NumPy."""
        if LOADER.mode == "off":
            return None
        if self._compiled is None:
            LOADER.request(rows)
        return self._compiled

    def load(self) -> None:
        """Load the machine code, or compile it; raises what Numba raises."""
        if self._compiled is not None:
            return
        numba = _numba()
        if numba.config.DISABLE_JIT:
            raise RuntimeError("NUMBA_DISABLE_JIT is set")
        options = {"nogil": True, "error_model": "numpy"}
        with suppress(Exception):  # no cache, or a damaged one
            cached = numba.njit(cache=True, **options)(self.function)
            with _only_process(Path(cached.stats.cache_path)), LOADER.step:
                cached.compile(self._signature)
            cached.disable_compile()
            self._compiled = cached
            return
        with LOADER.step:
            self._compiled = numba.njit(self._signature, **options)(self.function)


class Loader:
    """Loads the machine code of all kernels of the process, once it pays.

    `mode`: one of `MODES`.
    """

    def __init__(self, mode: str) -> None:
        if mode not in MODES:
            raise InvalidFlowError(
                f"The variable {VARIABLE} is {mode!r}.",
                remedy="Give 'off' or 'now', or leave it out.",
            )
        self.mode = mode
        self.kernels: list[Kernel[Any, Any]] = []
        self.step = threading.RLock()  # while Numba works, whose own locks a fork would copy
        self._rows = 0
        self.thread: threading.Thread | None = None
        os.register_at_fork(
            before=self.step.acquire,
            after_in_parent=self.step.release,
            after_in_child=self._begin_in_child,
        )
        atexit.register(self.step.acquire)  # LLVM is taken down under whatever runs then

    def request(self, rows: int) -> None:
        """Count rows for which a kernel had no machine code, and begin to load if that pays."""
        if self.mode == "now":
            self._load_all()
            return
        self._rows += rows
        if self._rows >= PAYING_ROWS and (self.thread is None or not self.thread.is_alive()):
            self._rows = 0  # of kernels that are defined later
            self.thread = threading.Thread(
                target=self._load_all, name="godwit-compiled", daemon=True
            )
            self.thread.start()

    def _load_all(self) -> None:
        """Load all kernels; where that fails, use NumPy from now on, and say so."""
        try:
            with self.step:
                _numba()
            for each in tuple(self.kernels):
                each.load()
        except ModuleNotFoundError as error:
            if error.name != "numba":
                self._give_up(error)
                return
            self.mode = "off"
            _logger.info(
                "Numba is not installed, so NumPy processes the rows, which takes longer: "
                "pip install 'godwit-streams[compiled]', where the executors run, too."
            )
        except Exception as error:  # noqa: BLE001  results do not depend on it
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Use NumPy from now on, and say why."""
        self.mode = "off"
        _logger.warning(
            "Numba cannot compile, so NumPy processes the rows, which takes longer (%s=off says "
            "nothing): %s: %s",
            VARIABLE,
            type(error).__name__,
            error,
        )

    def _begin_in_child(self) -> None:
        """Forget in a forked process the thread that only its parent has."""
        self.step.release()
        self.thread = None


def _numba() -> Any:
    """Import Numba, which takes half a second at the first time."""
    return import_module("numba")


@contextmanager
def _only_process(directory: Path) -> Iterator[None]:
    """Context in which, of the processes with this cache, one compiles; the others then load."""
    with ExitStack() as stack:
        with suppress(OSError):  # a file system without locks
            file = stack.enter_context((directory / "godwit.lock").open("a"))
            fcntl.lockf(file, fcntl.LOCK_EX)
        yield


LOADER: Final = Loader(os.environ.get(VARIABLE, ""))
"""The loader of the process."""

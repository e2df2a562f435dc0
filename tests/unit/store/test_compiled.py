"""Facts about kernels: when they are compiled, and what happens where they cannot be."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from godwit.model.errors import InvalidFlowError
from godwit.store import compiled
from godwit.store.compiled import PAYING_ROWS, Kernel, Loader, kernel

if TYPE_CHECKING:
    from pathlib import Path

numba: Any = import_module("numba")
SIGNATURE = "int64(int64[::1])"


def total(values: Any) -> int:
    result = 0
    for value in values:
        result += value
    return result


@pytest.fixture(autouse=True)
def kernels() -> None:
    """These tests run once, with loaders of their own."""


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Loader:
    """A loader of its own, with an empty cache."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    own = Loader("")
    monkeypatch.setattr(compiled, "LOADER", own)
    return own


def sums(own: Kernel[Any, Any]) -> bool:
    code = own.ready(1)
    return code is not None and code(np.arange(5)) == 10


def test_numpy_is_used_until_a_thread_has_loaded_what_pays(loader: Loader) -> None:
    own = kernel(SIGNATURE)(total)
    assert own.ready(PAYING_ROWS - 1) is None
    assert [loader.thread, own.ready(1)] == [None, None]
    assert isinstance(loader.thread, threading.Thread)
    loader.thread.join()
    assert sums(own)


def test_a_kernel_that_is_defined_later_is_loaded_too(loader: Loader) -> None:
    first = kernel(SIGNATURE)(total)
    loader.mode = "now"
    assert sums(first)
    assert sums(kernel(SIGNATURE)(total))


def test_machine_code_that_is_loaded_is_not_used_once_it_is_off(loader: Loader) -> None:
    own = kernel(SIGNATURE)(total)
    own.load()
    assert sums(own)
    loader.mode = "off"
    assert own.ready(2 * PAYING_ROWS) is None


@pytest.mark.usefixtures("loader")
def test_machine_code_takes_no_arrays_of_another_type() -> None:
    own = kernel(SIGNATURE)(total)
    own.load()
    code = own.ready(1)
    assert code is not None
    with pytest.raises(TypeError, match="No matching definition"):
        code(np.zeros(3))


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize("suffix", ["*.nbi", "*.nbc"])
def test_a_damaged_cache_is_compiled_again(suffix: str, tmp_path: Path) -> None:
    kernel(SIGNATURE)(total).load()
    files = list((tmp_path / "cache").rglob(suffix))
    assert files
    for file in files:
        file.write_bytes(file.read_bytes()[:40])
    own = kernel(SIGNATURE)(total)
    own.load()
    assert sums(own)


@pytest.mark.usefixtures("loader")
def test_where_nothing_can_be_cached_a_process_compiles() -> None:
    names: dict[str, Any] = {}
    exec(compile("def total(values):\n    return values.sum()", "<text>", "exec"), names)
    own: Kernel[Any, Any] = kernel(SIGNATURE)(names["total"])
    own.load()
    assert sums(own)


def test_what_cannot_be_compiled_is_left_to_numpy_with_one_warning(
    loader: Loader, caplog: pytest.LogCaptureFixture
) -> None:
    own = kernel("int64(unknown)")(total)
    loader.mode = "now"
    assert own.ready(1) is None
    assert own.ready(1) is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "Numba cannot compile" in record.getMessage()
    assert "unknown" in record.getMessage()


def test_where_jit_is_off_no_loop_runs_in_python(
    loader: Loader, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    loader.mode = "now"
    assert kernel(SIGNATURE)(total).ready(1) is None
    assert "NUMBA_DISABLE_JIT" in caplog.text


def test_without_numba_the_log_says_how_to_install_it(
    loader: Loader, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    loader.mode = "now"
    with caplog.at_level(logging.INFO):
        assert kernel(SIGNATURE)(total).ready(1) is None
    assert "godwit-streams[compiled]" in caplog.text


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(InvalidFlowError, match="GODWIT_COMPILED is 'on'"):
        Loader("on")


def test_a_fork_waits_until_numba_is_at_rest() -> None:
    works, forks = threading.Event(), threading.Event()

    def work() -> None:
        with compiled.LOADER.step:
            works.set()
            forks.wait()
            time.sleep(0.2)

    worker = threading.Thread(target=work)
    worker.start()
    works.wait()
    forks.set()
    child = os.fork()
    if child == 0:  # where the thread that has the lock does not run
        os._exit(0 if compiled.LOADER.step.acquire(timeout=10) else 1)
    worker.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("mode", ["", "now"])
def test_a_process_ends_well_while_it_loads_and_after(mode: str, tmp_path: Path) -> None:
    program = (
        "from godwit.store import index\n"
        "from godwit.store.compiled import PAYING_ROWS\n"
        "code = index._place.ready(PAYING_ROWS)\n"
        "print(code is not None)"
    )
    environment = {**os.environ, "GODWIT_COMPILED": mode, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{mode == 'now'}\n", "")

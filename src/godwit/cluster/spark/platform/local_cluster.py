"""A real Spark cluster on one machine: a standalone master, workers and executors, on loopback.

``local[n]`` has one process, so nothing can be lost but everything; moves and losses of executors
need processes.  `LocalCluster` starts them from the pip package, each a JVM of its own with its log
in the work directory.  Invariants: whatever way the ``with`` block ends, and if this process is
killed in it, no process outlives it, and none is signalled that this cluster did not start; and
nobody but their owner can use them: Spark's own port for submitting programs is shut, and who
speaks to master, workers, driver or executors has to know a secret that only a private file and
private environments hold.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from godwit.model.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from concurrent.futures import Future
    from types import TracebackType

    from pyspark.sql import SparkSession

HOST = "127.0.0.1"
FRUGAL = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Options of JVMs that share few cores: without the best compiler and the largest collector."""
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_MASTER_URL = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"Successfully registered with master")
_GRACE_S = 10.0


class LocalCluster:
    """A standalone Spark cluster on this machine, for as long as a ``with`` block lasts.

    Spark gives every application one executor on each worker; if the executor dies, its worker
    starts another one, under a new name.

    Parameters
    ----------
    workers
        Spark workers to begin with.
    cores
        Cores of each worker, which is the lanes of its executor. They may exceed the cores there
        are.
    memory
        Heap of each executor, as Spark writes sizes.
    work_dir
        Directory for logs and for what executors keep locally; by default a temporary one, which
        is removed at the end.
    conf
        Spark settings of every session. Where they are given, the JVM of this process starts beside
        the cluster's, and not only for the first session.
    timeout_s
        Seconds that each process may take to be ready.

    Raises
    ------
    ClusterError
        If a size makes no sense.

    Examples
    --------
    >>> with LocalCluster(workers=2) as cluster:  # doctest: +SKIP
    ...     spark = cluster.session("example")
    ...     cluster.kill_executor("0", spark.sparkContext.applicationId)
    """

    def __init__(
        self,
        workers: int = 3,
        cores: int = 1,
        memory: str = "1g",
        work_dir: str | os.PathLike[str] | None = None,
        *,
        conf: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        if workers < 0 or cores < 1 or not re.fullmatch(r"[1-9]\d*[mg]", memory):
            raise ClusterError(
                f"A local cluster of {workers} workers with {cores} cores and {memory!r} of memory "
                "cannot be started.",
                remedy="Give at least 0 workers, at least 1 core, and memory such as '1g' or "
                "'512m'.",
            )
        self._initial, self._cores, self._memory = workers, cores, memory
        self._conf, self._timeout_s = conf, timeout_s
        self._driver: Future[None] | None = None
        self._temporary = work_dir is None
        self._given = None if work_dir is None else Path(work_dir).absolute()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._sessions: list[SparkSession] = []
        self._secret = secrets.token_hex(32)
        self.work_dir: Path
        self.master_url: str

    # -- life ---------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.work_dir = self._given or Path(tempfile.mkdtemp(prefix="godwit-cluster-"))
        self.work_dir.mkdir(parents=True, exist_ok=True)
        write_private(self._daemon_settings, _daemon_settings(self._secret))
        if self._conf is not None:
            starter = ThreadPoolExecutor(1, thread_name_prefix="godwit-driver-jvm")
            self._driver = starter.submit(self._start_driver, {**self._settings(), **self._conf})
            starter.shutdown(wait=False)
        try:
            log = self._spawn("master", _MASTER)
            self.master_url = self._wait_for("master", log, _MASTER_URL).group(1)
            for _ in range(self._initial):
                self._begin_worker()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop sessions, executors, workers and the master; idempotent."""
        with undisturbed():
            for session in self._sessions:
                with suppress(Exception):  # what is left of it goes with its executors
                    session.stop()
            self._sessions.clear()
            executors = [pid for name in self._processes for pid in self._executors_of(name)]
            # The workers before the master, so that none of them looks for it in vain.
            processes = list(reversed(self._processes.values()))
            for process in processes:
                process.terminate()
            deadline = time.monotonic() + _GRACE_S
            for process in processes:
                try:
                    process.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                if process.stdin is not None:
                    process.stdin.close()
            _kill_executors(executors)
            self._processes.clear()
            self._daemon_settings.unlink(missing_ok=True)
            if self._temporary:
                shutil.rmtree(self.work_dir, ignore_errors=True)

    # -- use ----------------------------------------------------------------------------------

    def session(self, app_name: str, conf: Mapping[str, str] | None = None) -> SparkSession:
        """Start a Spark session whose executors are on this cluster.

        Spark allows one session in a process, so none may be active. The session is stopped with
        the cluster.

        Parameters
        ----------
        app_name
            Name of the application.
        conf
            Further Spark settings; they win over those made here.

        Raises
        ------
        ClusterError
            If a session of another cluster is active in this process.
        """
        # Slow, and pointless without Java.
        from pyspark import SparkConf, SparkContext  # noqa: PLC0415
        from pyspark.sql import SparkSession  # noqa: PLC0415

        active = SparkSession.getActiveSession()
        if active is not None and active.sparkContext.master != self.master_url:
            raise ClusterError(
                f"A Spark session on {active.sparkContext.master} is active in this process.",
                remedy="Stop it first: a process has one Spark context.",
            )
        if self._driver is not None:
            self._driver.result()
        given = {**self._settings(), **(self._conf or {}), **(conf or {})}
        self._start_driver(given)
        settings = SparkConf(loadDefaults=False)
        settings.setMaster(self.master_url).setAppName(app_name).setAll([*given.items()])
        with standard_error_to(self.work_dir / "driver.log"):
            jvm: Any = SparkContext._jvm  # noqa: SLF001  no public way
            jvm.java.lang.System.setProperty("spark.authenticate.secret", self._secret)
            session = SparkSession.builder.config(conf=settings).getOrCreate()
        self._sessions.append(session)
        self.wait_for_workers()
        return session

    def _start_driver(self, conf: Mapping[str, str]) -> None:
        """Start the JVM of this process unless there is one."""
        from pyspark import SparkConf, SparkContext  # noqa: PLC0415  as in `session`

        os.environ |= _environment()
        settings = SparkConf(loadDefaults=False).setAll([*conf.items()])
        with standard_error_to(self.work_dir / "driver.log"):
            # What is in `settings` stands on the JVM's command line, for everybody to read; so the
            # secret follows once the JVM is there.
            SparkContext._ensure_initialized(conf=settings)  # noqa: SLF001  no public way

    def wait_for_workers(self) -> None:
        """Wait until every Spark worker has registered with the master.

        Raises
        ------
        ClusterError
            If one has ended, or is not ready in time.
        """
        for name in self._processes:
            if name != "master":
                self._wait_for(name, self._log(name), _REGISTERED)

    def add_worker(self, *, wait: bool = True) -> str:
        """Start one more Spark worker and return its name; running applications get an executor.

        Parameters
        ----------
        wait
            Whether to return only when it has registered with the master.
        """
        name = self._begin_worker()
        if wait:
            self.wait_for_workers()
        return name

    def executor_pids(self, application_id: str) -> dict[str, int]:
        """Executor name → process id of its JVM, for one application.

        Parameters
        ----------
        application_id
            ``spark.sparkContext.applicationId``.
        """
        pids: dict[str, int] = {}
        for name in self._processes:
            for pid in self._executors_of(name):
                arguments = arguments_of(pid)
                if option_in(arguments, b"--app-id") == application_id:
                    pids[option_in(arguments, b"--executor-id")] = pid
        return dict(sorted(pids.items(), key=lambda item: (len(item[0]), item[0])))

    def kill_executor(self, name: str, application_id: str) -> int:
        """Kill an executor's JVM (SIGKILL: it gets no chance to say goodbye); return its pid.

        Raises
        ------
        ClusterError
            If that application has no such executor here.
        """
        pids = self.executor_pids(application_id)
        if name not in pids:
            raise ClusterError(
                f"Application {application_id} has no executor {name!r} on this cluster.",
                remedy=f"Its executors are {', '.join(pids) or 'none'}.",
            )
        os.kill(pids[name], signal.SIGKILL)
        return pids[name]

    # -- processes ----------------------------------------------------------------------------

    def _settings(self) -> dict[str, str]:
        """Spark settings of applications on the cluster."""
        return {
            "spark.authenticate": "true",
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
            "spark.driver.memory": "1g",
            "spark.executor.cores": str(self._cores),
            "spark.executor.memory": self._memory,
            "spark.scheduler.mode": "FAIR",
            # A lane waits this long for a busy executor, and, alas, for one that has just died.
            "spark.locality.wait.process": "4s",
            # On loopback a refused connection is a dead executor, so asking again is in vain.
            "spark.shuffle.io.maxRetries": "1",
            "spark.shuffle.io.retryWait": "100ms",
            # The programs of a local cluster share few cores: spare these the best compiler.
            "spark.driver.extraJavaOptions": FRUGAL,
            "spark.executor.extraJavaOptions": FRUGAL,
            "spark.python.daemon.module": "godwit.cluster.spark.platform.python_daemon",
            "spark.dynamicAllocation.enabled": "false",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(self.work_dir / "warehouse"),
            "spark.local.dir": str(self.work_dir / "local"),
        }

    def _begin_worker(self) -> str:
        """Start a worker; return its name."""
        name = f"worker-{len(self._processes)}"
        self._spawn(
            name,
            _WORKER,
            *("--cores", str(self._cores), "--memory", self._memory),
            *("--work-dir", str(self.work_dir / name)),
            self.master_url,
        )
        return name

    def _log(self, name: str) -> Path:
        """Path of a daemon's log."""
        return self.work_dir / f"{name}.log"

    @property
    def _daemon_settings(self) -> Path:
        """Path of the daemons' properties file."""
        return self.work_dir / "daemons.properties"

    def _spawn(self, name: str, daemon: str, *arguments: str) -> Path:
        """Start a daemon that dies with this process; return the path of its log."""
        _require_java()
        environment = os.environ | _environment()
        environment["SPARK_LOCAL_DIRS"] = str(self.work_dir / "local")
        log = self._log(name)
        with log.open("wb") as output:
            self._processes[name] = subprocess.Popen(  # noqa: S603  Spark's own launcher
                [
                    *(sys.executable, "-I", "-S", str(Path(__file__).with_name("guarded.py"))),
                    *(f"{environment['SPARK_HOME']}/bin/spark-class", daemon),
                    *("--host", HOST, "--port", "0", "--webui-port", "0"),
                    *("--properties-file", str(self._daemon_settings)),
                    *arguments,
                ],
                stdin=subprocess.PIPE,  # its end tells the process that we are gone
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                # Ctrl-C in the terminal is for this process, which then stops the others in order.
                start_new_session=True,
            )
        return log

    def _wait_for(self, name: str, log: Path, pattern: re.Pattern[str]) -> re.Match[str]:
        """Wait until a daemon's log matches a pattern; raise if it exits or time is up."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            exited = self._processes[name].poll()
            text = log.read_text(errors="replace")
            if found := pattern.search(text):
                return found
            if exited is not None or time.monotonic() > deadline:
                why = (
                    f"was not ready after {self._timeout_s:.0f} s"
                    if exited is None
                    else f"ended with status {exited}"
                )
                tail = "\n".join(text.splitlines()[-15:])
                raise ClusterError(
                    f"Spark's {name} {why}. The end of its log:\n{tail}\n",
                    remedy="Spark 4.3 needs Java 17 or newer (on Debian and Ubuntu: apt install "
                    "openjdk-17-jre-headless).",
                    log=str(log),
                )
            time.sleep(0.05)

    def _executors_of(self, name: str) -> list[int]:
        """Process ids of the executors that a worker runs."""
        return [
            child
            for daemon in children_of(self._processes[name].pid)
            for child in children_of(daemon)
        ]


def _daemon_settings(secret: str) -> dict[str, str]:
    """Spark settings of master and workers."""
    return {
        "spark.authenticate": "true",
        "spark.authenticate.secret": secret,
        # Whoever reaches this port may run programs as us, and it does not ask for the secret.
        "spark.master.rest.enabled": "false",
        # Nor do the pages of master and workers, which therefore only show.
        "spark.ui.killEnabled": "false",
        "spark.master.ui.decommission.allow.mode": "DENY",
    }


def _environment() -> dict[str, str]:
    """Environment variables of master and workers."""
    return {
        "SPARK_HOME": _spark_home(),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_PUBLIC_DNS": HOST,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": FRUGAL,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def _spark_home() -> str:
    if named := os.environ.get("SPARK_HOME"):
        return named
    found = find_spec("pyspark")
    assert found is not None, "Godwit depends on PySpark."
    assert found.origin is not None, "PySpark is a package with a file."
    return str(Path(found.origin).parent)


def _require_java() -> None:
    """Refuse to start without Java."""
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and (Path(home) / "bin/java").exists()):
        raise ClusterError(
            "Spark needs Java 17 or newer, and there is no `java` on the PATH nor in JAVA_HOME.",
            remedy="Install it (on Debian and Ubuntu: apt install openjdk-17-jre-headless) or set "
            "JAVA_HOME.",
        )


def _kill_executors(pids: list[int]) -> None:
    """Kill the executors that run still, and wait until none does."""
    deadline = time.monotonic() + _GRACE_S
    # A process that is still an executor is still the same: orphans keep their pid.
    while left := [pid for pid in pids if b"--executor-id" in arguments_of(pid)]:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return  # a process that the kernel does not end is nothing to wait for
        time.sleep(0.01)


def children_of(pid: int) -> list[int]:
    """List the process ids of a process's children."""
    try:
        # Listed by thread: an executor belongs to the thread of the worker that started it.
        listed = [p.read_text() for p in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    return [int(child) for text in listed for child in text.split()]


def write_private(path: Path, settings: Mapping[str, str]) -> None:
    """Write settings to a file that only its owner may read."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.writelines(f"{key} {value}\n" for key, value in settings.items())


def arguments_of(pid: int) -> list[bytes]:
    """Command line of a process; nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def option_in(arguments: list[bytes], name: bytes) -> str:
    """Value of an option on a command line; empty if it is not there."""
    return arguments[arguments.index(name) + 1].decode() if name in arguments[:-1] else ""


@contextmanager
def standard_error_to(log: Path) -> Iterator[None]:
    """Context that redirects the standard error of a JVM started in it to `log`."""
    before = os.dup(2)
    try:
        with log.open("ab") as output:
            os.dup2(output.fileno(), 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Context that delays Ctrl-C, so that no processes are left behind."""
    held: list[int] = []
    try:
        before = signal.signal(signal.SIGINT, lambda number, _frame: held.append(number))
    except ValueError:  # not the main thread, which gets no signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

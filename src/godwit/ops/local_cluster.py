"""A real Spark cluster on one machine: a standalone master, workers and executors, on loopback.

``local[n]`` has one process, so nothing can be lost but everything; moves and losses of executors
need processes.  `LocalCluster` gives each executor a JVM of its own.  Master and workers only start
programs and wait, so they live in the JVM of this process, beside the driver, as in Spark's own
``local-cluster``: a JVM each would be three more that read some 15,000 classes before anything
runs.  But workers can join later here, and logs are in the work directory.

Invariants: whatever way the ``with`` block ends, and if this process is killed in it, no executor
outlives it, and no process is signalled that this cluster did not start; and only their owner can
use them: Spark's own port for submitting programs is shut, and who speaks to master, workers,
driver or executors has to know a secret that only private memory and private environments hold.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from godwit.model.errors import ClusterError
from godwit.model.locations import check_location

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from concurrent.futures import Future
    from types import TracebackType

    from pyspark.sql import SparkSession

HOST = "127.0.0.1"
FRUGAL = (
    "-XX:+IgnoreUnrecognizedVMOptions -XX:+UseSerialGC -XX:TieredStopAtLevel=1 "
    "-XX:ReservedCodeCacheSize=192m "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""Options of JVMs that share few cores: without the best compiler, the largest collector, and the
verification of the classes in Spark's own jars, which takes a sixth of a start."""
_MASTER_STATE = "DeployMessages$RequestMasterState$"
_WORKER_URL = b"--worker-url"
_GRACE_S = 10.0


class LocalCluster:
    """A standalone Spark cluster on this machine, for as long as a ``with`` block lasts.

    Each executor is a process (JVM) of its own, so that queries can be scaled, and executors lost,
    as on a real cluster. For development and tests: it runs on Linux, and listens on loopback only.
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
        Spark settings of every session. Where they are given, the cluster starts in the background
        as soon as the block is entered; else with the first session, whose settings it needs.
    timeout_s
        Seconds that workers may take to be ready.

    Raises
    ------
    ClusterError
        If a size makes no sense.

    Examples
    --------
    >>> cluster = gw.testing.LocalCluster(workers=2, memory="512m")  # which starts nothing
    >>> with cluster:  # doctest: +SKIP
    ...     session = cluster.session("delays")
    ...     query = delays.start(checkpoint="checkpoint/", session=session, executors=2)
    ...     query.processAllAvailable()
    ...     query.stop()
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
        if work_dir is not None:
            check_location(os.fspath(work_dir), ClusterError)
            if {",", ":"} & {*str(Path(work_dir).absolute())}:
                raise ClusterError(
                    f"The directory {os.fspath(work_dir)!r} has a comma or colon in its path, "
                    "which Spark takes for a list of directories.",
                    remedy="Give another work_dir, or leave it out for a temporary one.",
                )
        self._initial, self._cores, self._memory = workers, cores, memory
        self._conf, self._timeout_s = conf, timeout_s
        self._given = None if work_dir is None else Path(work_dir).absolute()
        self._entered = False
        self._starting: Future[None] | None = None
        self._once = threading.Lock()  # held while the cluster starts, gains a worker or ends
        self._gateway: Any = None  # to the JVM of this process
        self._daemons: list[Any] = []  # communication of the master, then of each worker
        self._worker_urls: list[bytes] = []  # as executors are told them
        self._sessions: list[SparkSession] = []
        self._secret = secrets.token_hex(32)
        self._master_url = ""
        self.work_dir: Path

    # -- life ---------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        _require_java()
        self.work_dir = self._given or Path(tempfile.mkdtemp(prefix="godwit-cluster-"))
        self.work_dir.mkdir(parents=True, exist_ok=True)
        self._entered = True
        if self._conf is not None:
            import pyspark  # noqa: F401, PLC0415  before others import and hold the lock on Python

            starter = ThreadPoolExecutor(1, thread_name_prefix="godwit-cluster")
            self._starting = starter.submit(self._start, {**self._spark_settings(), **self._conf})
            starter.shutdown(wait=False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop sessions, executors, workers and the master of the cluster; idempotent.

        The end of the ``with`` block calls it.

        Examples
        --------
        >>> cluster.close()
        """
        with undisturbed():
            if self._starting is not None:
                with suppress(Exception):  # reported to the caller that waited for it
                    self._starting.result()
            for session in self._sessions:
                with suppress(Exception):  # the rest of it ends with its executors
                    session.stop()
            self._sessions.clear()
            with self._once:
                entered, self._entered = self._entered, False
                self._starting = None
                self._end_daemons()
            self._kill_executors()  # once no worker is left that would begin another
            self._worker_urls.clear()
            if entered and self._given is None:
                shutil.rmtree(self.work_dir, ignore_errors=True)

    # -- use ----------------------------------------------------------------------------------

    @property
    def master_url(self) -> str:
        """URL of the Spark master; starts the cluster if it has not started.

        Examples
        --------
        >>> cluster.master_url
        'spark://127.0.0.1:...'
        """
        self._ensure_started()
        return self._master_url

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

        Examples
        --------
        >>> session = cluster.session("delays", {"spark.sql.shuffle.partitions": "2"})
        >>> session.range(3).count()
        3
        """
        with undisturbed():  # Ctrl-C in an import may leave Python's lock on imports held
            # Slow, and pointless without Java.
            from pyspark import SparkConf, SparkContext  # noqa: PLC0415
            from pyspark.sql import SparkSession  # noqa: PLC0415

        active = SparkSession.getActiveSession()
        if active is not None and active.sparkContext.master != self._master_url:
            raise ClusterError(
                f"A Spark session on {active.sparkContext.master} is active in this process.",
                remedy="Stop it first: a process has one Spark context.",
            )
        given = {**self._spark_settings(), **(self._conf or {}), **(conf or {})}
        self._ensure_started(given)
        settings = SparkConf(loadDefaults=False)
        settings.setMaster(self.master_url).setAppName(app_name).setAll([*given.items()])
        self._jvm.java.lang.System.setProperty("spark.authenticate.secret", self._secret)
        with undisturbed():  # a half-started session would never be stopped
            with undisturbed():
                # Spark sets a handler of Ctrl-C here that calls the JVM amid whatever call it
                # interrupts, and fails.  The one before is enough: jobs end with the cluster.
                SparkContext.getOrCreate(SparkConf().setAll(settings.getAll()))  # and the secret
            session = SparkSession.builder.config(conf=settings).getOrCreate()
            self._sessions.append(session)
        return session

    def wait_for_workers(self) -> None:
        """Wait until every Spark worker has registered with the master.

        Raises
        ------
        ClusterError
            If one is not ready in time.

        Examples
        --------
        >>> cluster.wait_for_workers()
        """
        self._ensure_started()
        deadline = time.monotonic() + self._timeout_s
        while True:
            with self._once:
                self._require_entered()
                registered, workers = self._registered(), len(self._worker_urls)
            if registered >= workers:
                return
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{registered} of {workers} Spark workers have registered with the master "
                    f"after {self._timeout_s:.0f} s.",
                    remedy=f"The log may say why: {self._log_path}",
                    log=str(self._log_path),
                )
            time.sleep(0.02)

    def add_worker(self, *, wait: bool = True) -> str:
        """Start one more Spark worker and return its name; running applications get an executor.

        Parameters
        ----------
        wait
            Whether to return only when it has registered with the master.

        Examples
        --------
        >>> cluster.add_worker()
        'worker-2'
        """
        self._ensure_started()
        with undisturbed(), self._once:
            self._require_entered()
            name = self._begin_worker()
        if wait:
            self.wait_for_workers()
        return name

    def executor_pids(self, application_id: str) -> dict[str, int]:
        """Return executor name → process id of its JVM, for one application.

        Parameters
        ----------
        application_id
            ``spark.sparkContext.applicationId``.

        Examples
        --------
        >>> cluster.executor_pids(session.sparkContext.applicationId)
        {'0': ...}
        """
        pids: dict[str, int] = {}
        for pid in self._executor_pids():
            arguments = arguments_of(pid)
            if option_in(arguments, b"--app-id") == application_id:
                pids[option_in(arguments, b"--executor-id")] = pid
        return dict(sorted(pids.items(), key=lambda item: (len(item[0]), item[0])))

    def kill_executor(self, name: str, application_id: str) -> int:
        """Kill an executor's JVM by SIGKILL, without a chance to clean up; return its process id.

        Raises
        ------
        ClusterError
            If that application has no such executor here.

        Examples
        --------
        >>> killed = cluster.kill_executor("0", session.sparkContext.applicationId)
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

    def _spark_settings(self) -> dict[str, str]:
        """Return the Spark settings of applications on the cluster."""
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
            "spark.python.daemon.module": "godwit.spark.platform.python_daemon",
            "spark.dynamicAllocation.enabled": "false",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(self.work_dir / "warehouse"),
            "spark.local.dir": str(self.work_dir / "local"),
        }

    def _ensure_started(self, conf: Mapping[str, str] | None = None) -> None:
        """Start the cluster, or wait for its start if it has begun; raise outside of ``with``.

        `conf`: all Spark settings, instead of the default ones; ignored if the start has begun.
        """
        self._require_entered()
        if (starting := self._starting) is not None:
            starting.result()
        else:
            self._start(self._spark_settings() if conf is None else conf)

    def _require_entered(self) -> None:
        """Raise outside of the ``with`` block."""
        if not self._entered:
            raise ClusterError(
                "This local cluster is not running.",
                remedy="Use it within its block: `with LocalCluster() as cluster:`.",
            )

    def _start(self, conf: Mapping[str, str]) -> None:
        """Start the JVM of this process if there is none, and master and workers in it."""
        with self._once:
            self._require_entered()
            if self._daemons:
                return
            self._gateway = self._start_driver(conf)
            self._check_loopback()
            try:
                master = self._jvm.org.apache.spark.deploy.master.Master
                started = master.startRpcEnvAndEndpoint(HOST, 0, 0, self._daemon_conf())
                rpc = started.productElement(0)
                self._daemons.append(rpc)
                self._master_url = f"spark://{HOST}:{rpc.address().port()}"
                for _ in range(self._initial):
                    self._begin_worker()
            except BaseException:
                self._end_daemons()
                self._worker_urls.clear()
                raise

    def _start_driver(self, conf: Mapping[str, str]) -> Any:
        """Start this process's JVM if there is none, or raise; return the Py4J gateway to it."""
        from pyspark import SparkConf, SparkContext  # noqa: PLC0415  as in `session`
        from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415

        os.environ |= _jvm_environment()
        threading.Thread(target=_import_for_start, daemon=True).start()
        settings = SparkConf(loadDefaults=False).setAll([*conf.items()])
        try:
            with standard_error_to(self._log_path):
                # `settings` are on the JVM's command line, which every user can read; so
                # the secret follows once the JVM is there.
                SparkContext._ensure_initialized(conf=settings)  # noqa: SLF001  no public way
        except PySparkRuntimeError as error:
            tail = "\n".join(self._log_path.read_text(errors="replace").splitlines()[-15:])
            raise ClusterError(
                f"Spark's JVM ended before it was ready. The end of its log:\n{tail}\n",
                remedy="Spark needs Java 17 or newer (on Debian and Ubuntu: apt install "
                "openjdk-17-jre-headless).",
                log=str(self._log_path),
            ) from error
        return SparkContext._gateway  # noqa: SLF001  no public way

    def _check_loopback(self) -> None:
        """Raise if the web pages of master and workers would be open to the network."""
        host = self._jvm.java.lang.System.getenv("SPARK_LOCAL_IP")  # Spark goes by nothing else
        if host not in (HOST, "localhost"):
            raise ClusterError(
                "The JVM of this process was started by another Spark session, with "
                f"SPARK_LOCAL_IP {'unset' if host is None else f'set to {host!r}'}: other machines "
                "could open the pages of the cluster's master and workers.",
                remedy=f"Set SPARK_LOCAL_IP={HOST} in the environment before the first session "
                "starts; or start the cluster before any other session.",
            )

    def _end_daemons(self) -> None:
        """Stop the workers and the master."""
        # The workers before the master, so that none of them looks for it in vain.
        for daemon in reversed(self._daemons):
            with suppress(Exception):  # the JVM may be gone, and all of them with it
                daemon.shutdown()
                daemon.awaitTermination()
        self._daemons.clear()
        self._master_url = ""

    @property
    def _jvm(self) -> Any:
        """Py4J view of the JVM of this process."""
        return self._gateway.jvm

    def _daemon_conf(self) -> Any:
        """Return the Spark settings of master and workers."""
        conf = self._jvm.org.apache.spark.SparkConf(False)
        settings = {
            "spark.authenticate": "true",
            "spark.authenticate.secret": self._secret,
            "spark.local.dir": str(self.work_dir / "local"),
            # This port runs programs as our user for any client, and does not ask for the secret.
            "spark.master.rest.enabled": "false",
            # Nor do the pages of master and workers, which therefore only show.
            "spark.ui.killEnabled": "false",
            "spark.master.ui.decommission.allow.mode": "DENY",
        }
        for name, value in settings.items():
            conf.set(name, value)
        return conf

    def _begin_worker(self) -> str:
        """Start a Spark worker; return its name."""
        jvm, number = self._jvm, len(self._daemons)
        name = f"worker-{number}"
        masters = self._gateway.new_array(jvm.java.lang.String, 1)
        masters[0] = self._master_url
        rpc = jvm.org.apache.spark.deploy.worker.Worker.startRpcEnvAndEndpoint(
            HOST,
            0,
            0,
            self._cores,
            int(self._memory[:-1]) * (1024 if self._memory.endswith("g") else 1),  # in MiB
            masters,
            str(self.work_dir / name),
            jvm.scala.Option.apply(number),
            self._daemon_conf(),
            jvm.scala.Option.empty(),
        )
        self._daemons.append(rpc)
        self._worker_urls.append(f"spark://Worker@{HOST}:{rpc.address().port()}".encode())
        return name

    def _registered(self) -> int:
        """Return the number of live workers that are registered with the master."""
        jvm, master = self._jvm, self._daemons[0]
        messages = jvm.org.apache.spark.deploy
        ask = getattr(getattr(messages, _MASTER_STATE), "MODULE$")
        answer = getattr(messages, "DeployMessages$MasterStateResponse")
        to = master.setupEndpointRef(master.address(), "Master")
        kind = jvm.java.lang.Class.forName(answer._fqn)  # noqa: SLF001  Py4J's only name of it
        state = to.askSync(ask, jvm.scala.reflect.ClassTag.apply(kind))
        return sum(worker.isAlive() for worker in state.workers())

    @property
    def _log_path(self) -> Path:
        """Path of the log of driver, master and workers."""
        return self.work_dir / "driver.log"

    def _executor_pids(self) -> list[int]:
        """Return the process ids of the executors that the workers run."""
        if self._gateway is None:
            return []
        try:
            jvm = self._jvm.java.lang.ProcessHandle.current().pid()
        except Exception:  # noqa: BLE001  the JVM is gone, and executors end without their driver
            return []
        return [
            pid
            for pid in children_of(jvm)
            if option_in(arguments_of(pid), _WORKER_URL).encode() in self._worker_urls
        ]

    def _kill_executors(self) -> None:
        """Kill the executors that still run, and wait until none does."""
        deadline = time.monotonic() + _GRACE_S
        while left := self._executor_pids():
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                return  # a process that the kernel does not end is nothing to wait for
            time.sleep(0.01)


def _import_for_start() -> None:
    """Import, while the JVM starts, what the first call of it and the start of a query need.

    Py4J's converters of PySpark import ``pyspark.testing`` in the first call, and with it pandas:
    a second of a core, for which a restarted query would wait.
    """
    for module in ("pyspark.testing.utils", "godwit.spark.start"):
        with suppress(Exception):  # raised again where it is needed
            import_module(module)


def _jvm_environment() -> dict[str, str]:
    """Return the environment variables for the JVM of this process."""
    return {
        "SPARK_HOME": _spark_home(),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_PUBLIC_DNS": HOST,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def _spark_home() -> str:
    """Return the directory of the Spark installation that PySpark uses."""
    if named := os.environ.get("SPARK_HOME"):
        return named
    spec = find_spec("pyspark")
    assert spec is not None, "Godwit depends on PySpark."
    assert spec.origin is not None, "PySpark is a package with a file."
    return str(Path(spec.origin).parent)


def _require_java() -> None:
    """Raise if Java is not installed."""
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and (Path(home) / "bin/java").exists()):
        raise ClusterError(
            "Spark needs Java 17 or newer, but there is no `java` on the PATH or in JAVA_HOME.",
            remedy="Install it (on Debian and Ubuntu: apt install openjdk-17-jre-headless) or set "
            "JAVA_HOME.",
        )


def children_of(pid: int) -> list[int]:
    """Return the process ids of a process's children."""
    # By each process's own parent: what the kernel lists per thread lacks some while threads end.
    parent = f"PPid:\t{pid}\n".encode()
    children = []
    for path in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):  # it has ended meanwhile
            if parent in path.read_bytes():  # names that the kernel has cut are no text
                children.append(int(path.parent.name))
    return children


def arguments_of(pid: int) -> list[bytes]:
    """Return the command line of a process; empty if it has ended."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return line.split(b"\0") if line else []  # empty while the process ends


def option_in(arguments: list[bytes], name: bytes) -> str:
    """Return the value of an option on a command line; empty if absent."""
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
    """Context that delays Ctrl-C until its end, so that no processes are left running.

    The present handler of Ctrl-C is called then.
    """
    signals: list[int] = []
    try:
        before = signal.signal(signal.SIGINT, lambda number, _frame: signals.append(number))
    except ValueError:  # not the main thread, which gets no signals
        yield
        return
    try:
        yield
    finally:
        # `None`: a handler that is not Python's, which Python cannot set again.
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
        if signals:
            signal.raise_signal(signal.SIGINT)

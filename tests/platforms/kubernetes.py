"""A query on Spark's own Kubernetes backend, over an API server of this file.

    python -m tests.platforms.kubernetes

Spark's backend, its allocator of pods, its snapshots and the backend of executors are those of
PySpark's jars.  The API server knows the few resources that they use; a pod is a process of this
machine, started by ``deploy/kubernetes/entrypoint.sh``, with an address of its own in 127.0.1.0/24.
What is stood in for: the API server, the kubelet, the network between pods, and images.

Exit status 0: all that Godwit assumes of this platform has held.
"""

from __future__ import annotations

import http.server
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import godwit as gw

ROOT = Path(__file__).parents[2]
NAMESPACE = "/api/v1/namespaces/default/"


class Pods:
    """Resources of a namespace, and the processes of its pods."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self._directory, self._environment = directory, environment
        self._changing = threading.RLock()
        self._version = 0
        self.others: dict[str, dict[str, Any]] = {}  # kind/name → resource
        self.pods: dict[str, dict[str, Any]] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.executor_ids: list[str] = []  # of all pods that there ever were, in order

    def create(self, kind: str, resource: dict[str, Any]) -> dict[str, Any]:
        """Create a resource; a pod starts at once."""
        with self._changing:
            self._version += 1
            described = resource["metadata"]
            described |= {"uid": str(uuid.uuid4()), "resourceVersion": str(self._version)}
            described["creationTimestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            if kind != "pods":
                self.others[f"{kind}/{described['name']}"] = resource
                return resource
            self.pods[described["name"]] = resource
            self._start(resource)
            return resource

    def _start(self, pod: dict[str, Any]) -> None:
        """Start the process of a pod."""
        name, (container,) = pod["metadata"]["name"], pod["spec"]["containers"]
        address = f"127.0.1.{len(self.executor_ids) + 1}"
        variables = dict(self._environment)
        values = {"status.podIP": address, "metadata.name": name}
        for variable in container["env"]:
            variables[variable["name"]] = (
                variable.get("value") or values[variable["valueFrom"]["fieldRef"]["fieldPath"]]
            )
        self.executor_ids.append(variables["SPARK_EXECUTOR_ID"])
        with (self._directory / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [ROOT / "deploy/kubernetes/entrypoint.sh", *container["args"]],
                env=variables,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        state = {"running": {"startedAt": pod["metadata"]["creationTimestamp"]}}
        status = {"name": container["name"], "state": state, "ready": True, "restartCount": 0}
        pod["status"] = {"phase": "Running", "podIP": address, "containerStatuses": [status]}

    def listed(self, kind: str, selector: str) -> dict[str, Any]:
        """Return the resources of a kind with labels."""
        among = re.findall(r"([\w./-]+) in \(([^)]*)\)", selector)
        plain = re.sub(r"[\w./-]+ (?:not)?in \([^)]*\)", "", selector)
        wanted = dict(re.findall(r"([\w./-]+)=([\w.-]+)", plain.replace("!=", "!")))
        with self._changing:
            for name, process in self.processes.items():
                if process.poll() is not None and name in self.pods:
                    self._ended(self.pods[name], process.returncode)
            resources = [r for name, r in self.others.items() if name.startswith(f"{kind}/")]
            if kind == "pods":
                resources = list(self.pods.values())
            items = []
            for resource in resources:
                labels = resource["metadata"].get("labels", {})
                listed = all(labels.get(name) in values.split(",") for name, values in among)
                if listed and wanted.items() <= labels.items():
                    items.append(resource)
            version = {"resourceVersion": str(self._version)}
            names = {"pods": "Pod", "configmaps": "ConfigMap", "services": "Service"}
            listed_kind = f"{names.get(kind, 'PersistentVolumeClaim')}List"
            return {"kind": listed_kind, "apiVersion": "v1", "metadata": version, "items": items}

    @staticmethod
    def _ended(pod: dict[str, Any], status: int) -> None:
        """Note that the process of a pod has ended."""
        pod["status"]["phase"] = "Succeeded" if status == 0 else "Failed"
        state = {"terminated": {"exitCode": status % 256, "reason": "Error"}}
        pod["status"]["containerStatuses"][0]["state"] = state

    def delete(self, kind: str, name: str) -> dict[str, Any] | None:
        """Delete a resource; the process of a pod is ended."""
        with self._changing:
            if kind != "pods":
                return self.others.pop(f"{kind}/{name}", None)
            pod = self.pods.pop(name, None)
        if pod is not None:
            self.end(name)
        return pod

    def end(self, name: str, number: int = signal.SIGTERM) -> None:
        """Send a signal to the process of a pod."""
        process = self.processes[name]
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    def pod_of(self, executor: str) -> str:
        """Return the name of the pod of an executor."""
        label = "spark-exec-id"
        return next(n for n, p in self.pods.items() if p["metadata"]["labels"][label] == executor)

    def close(self) -> None:
        """End all processes."""
        for name, process in self.processes.items():
            self.end(name, signal.SIGKILL)
            process.wait(10)


class Api(http.server.BaseHTTPRequestHandler):
    """Requests of Kubernetes' API for resources of one namespace."""

    protocol_version = "HTTP/1.1"
    pods: Pods

    def log_message(self, *_: Any) -> None:
        """Write no log."""

    def _answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _body(self) -> Any:
        size = int(self.headers.get("Content-Length") or 0)
        return json.loads(self.rfile.read(size) or b"{}")

    def _asked(self) -> tuple[str, str, dict[str, list[str]]]:
        """Return kind and name of the resource in the path, and the parameters."""
        url = urlsplit(self.path)
        kind, _, name = url.path.removeprefix(NAMESPACE).partition("/")
        return kind, name, parse_qs(url.query)

    def _missing(self) -> None:
        self._answer(404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404})

    def do_GET(self) -> None:
        """Answer with a resource, or a list."""
        kind, name, parameters = self._asked()
        if "watch" in parameters:  # Spark polls, too
            self._answer(403, {"kind": "Status", "status": "Failure", "code": 403})
        elif name:
            pod = self.pods.pods.get(name) if kind == "pods" else None
            resource = pod or self.pods.others.get(f"{kind}/{name}")
            self._answer(200, resource) if resource else self._missing()
        else:
            self._answer(200, self.pods.listed(kind, parameters.get("labelSelector", [""])[0]))

    def do_POST(self) -> None:
        """Create a resource."""
        kind, _, _ = self._asked()
        self._answer(201, self.pods.create(kind, self._body()))

    def do_PATCH(self) -> None:
        """Accept a change of labels."""
        kind, name, _ = self._asked()
        self._body()
        pod = self.pods.pods.get(name) if kind == "pods" else None
        self._answer(200, pod) if pod else self._missing()

    def do_DELETE(self) -> None:
        """Delete a resource, or all of a kind with labels."""
        kind, name, parameters = self._asked()
        self._body()
        if not name:
            for each in self.pods.listed(kind, parameters.get("labelSelector", [""])[0])["items"]:
                self.pods.delete(kind, each["metadata"]["name"])
            self._answer(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})
            return
        gone = self.pods.delete(kind, name)
        self._answer(200, gone) if gone else self._missing()


def settings(url: str, directory: Path) -> dict[str, str]:
    """Return the settings of a session on the API server."""
    return {
        "spark.master": f"k8s://{url}",
        "spark.app.name": "on-kubernetes",
        "spark.kubernetes.container.image": "of-this-machine",
        "spark.kubernetes.executor.enableApiWatcher": "false",
        "spark.kubernetes.executor.apiPollingInterval": "1s",
        "spark.kubernetes.allocation.batch.delay": "1s",
        "spark.kubernetes.executor.podNamePrefix": "godwit",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.instances": "2",
        "spark.executor.cores": "2",
        "spark.executor.memory": "600m",
        "spark.executor.memoryOverhead": "100m",
        "spark.local.dir": str(directory / "local"),
        "spark.dynamicAllocation.enabled": "false",
        "spark.scheduler.mode": "FAIR",
        "spark.ui.enabled": "false",
        "spark.network.timeout": "60s",
        "spark.executor.heartbeatInterval": "5s",
        "spark.shuffle.io.maxRetries": "1",
        "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }


def totals() -> tuple[gw.Flow, Any]:
    """Return a flow that counts rows by key, and its source."""
    flow = gw.Flow("totals", num_key_groups=16)
    rows = gw.sources.memory("k bigint, v bigint", name="rows")
    counted = flow.source("rows", rows).key_by("k")
    flow.sink("out", counted.compute(name="t", n=gw.count(), total=gw.sum("v")), gw.sinks.noop())
    return flow, rows


def true_executors(spark: Any, places: Any) -> dict[str, tuple[str, str]]:
    """Return executor → the name that a task finds that is sent there, and its pod's name."""
    from godwit.engine.lane.executor import current_executor
    from godwit.spark.stages.exchange import fetch, on_executors, python_rdd

    def report(_: int) -> Any:
        """Yield what the task knows of where it is."""
        text = f"{current_executor('unknown')} {os.environ.get('SPARK_EXECUTOR_POD_NAME')}"
        yield text.encode()

    answers = {}
    for place in places:
        stage = on_executors([place.location], report, spark.sparkContext)
        (line,) = fetch(python_rdd(stage, spark.sparkContext), spark.sparkContext)
        name, _, pod = line.decode().partition(" ")
        answers[place.name] = name, pod
    return answers


def until(holds: Any, what: str, timeout_s: float = 240.0) -> None:
    """Wait until a condition holds."""
    end_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end_s, what
        time.sleep(0.2)


def trial(pods: Pods, url: str, directory: Path) -> None:
    """Run a query through moves, a lost pod, and scaling; check what Godwit assumes."""
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    from godwit.spark.platform.executors import live_executors

    conf = SparkConf(loadDefaults=False).setAll([*settings(url, directory).items()])
    spark = SparkSession.builder.config(conf=conf).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    flow, rows = totals()
    expected: dict[int, list[int]] = {}
    query = flow.start(
        checkpoint=str(directory / "ck"),
        session=spark,
        executors=2,
        sizing=gw.Sizing(executors_timeout_s=240.0),
    )

    def epoch() -> None:
        """Add rows, wait until they are counted, and compare the state with a model."""
        batch = [{"k": n % 40, "v": n} for n in range(400)]
        for row in batch:
            expected.setdefault(row["k"], []).append(row["v"])
        rows.add(batch)
        query.processAllAvailable()
        state = query.state("t")
        counted = {r["k"]: (r["n"], r["total"]) for r in state.scan().to_pylist()}
        assert counted == {k: (len(v), sum(v)) for k, v in expected.items()}

    try:
        for _ in range(3):
            epoch()
        places = live_executors(spark.sparkContext)
        print("executors", [(p.name, p.location) for p in places], flush=True)
        assert {p.name for p in places} == {*query.executors} == {*pods.executor_ids}
        for place in places:  # the location names the pod's address
            pod = pods.pods[pods.pod_of(place.name)]
            assert place.location == f"executor_{pod['status']['podIP']}_{place.name}"
        answers = true_executors(spark, places)
        print("tasks", answers, flush=True)
        assert answers == {p.name: (p.name, pods.pod_of(p.name)) for p in places}
        query.migrate({g: query.executors[g % 2] for g in range(16)}).wait()
        epoch()
        print("moved", flush=True)
        lost = query.executors[0]
        pods.end(pods.pod_of(lost), signal.SIGKILL)
        epoch()
        until(lambda: lost not in query.executors, "the lost pod is noticed")
        until(lambda: len(query.executors) == 2, "its pod is replaced")
        epoch()
        print("lost", lost, "now", query.executors, flush=True)
        query.scale(3).wait()
        assert len(query.executors) == 3
        epoch()
        print("scaled up", query.executors, flush=True)
        query.scale(2).wait()
        epoch()
        until(lambda: len(pods.pods) == 2, "the pod that was given back is deleted")
        print("scaled down", query.executors, flush=True)
        time.sleep(4)  # some of the allocator's rounds
        assert len(pods.pods) == 2, "an executor that was given back is not replaced"
        numbers = [int(name) for name in pods.executor_ids]
        assert numbers == sorted({*numbers}), "ids are never used again"
        epoch()
        query.stop()
    finally:
        spark.stop()
    until(lambda: not pods.pods, "pods go with the session")
    print("ids", pods.executor_ids, flush=True)


def main() -> int:
    """Serve the API, and run the trial."""
    with tempfile.TemporaryDirectory(prefix="godwit-k8s-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        tini = directory / "bin" / "tini"
        tini.parent.mkdir()
        tini.write_text('#!/bin/sh\nshift 2\nexec "$@"\n')
        tini.chmod(0o755)
        import pyspark

        home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
        environment = {
            **{n: v for n, v in os.environ.items() if n != "SPARK_LOCAL_IP"},
            "SPARK_HOME": home,
            "PATH": f"{tini.parent}:{os.environ['PATH']}",
            "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT / "src")),
        }
        os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        Api.pods = pods = Pods(directory, environment)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            trial(pods, f"http://127.0.0.1:{server.server_port}", directory)
        except BaseException:
            for log in sorted(directory.glob("*.log")):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}", file=sys.stderr)
            raise
        finally:
            pods.close()
            server.shutdown()
    print("All that Godwit assumes of Kubernetes has held.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

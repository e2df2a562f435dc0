"""A flow on Kubernetes: Spark in client mode, whose driver is this process in its pod.

Replace the flow by yours. Everything that is about the cluster comes from variables of the pod.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

import godwit as gw

NEEDED = ("GODWIT_IMAGE", "GODWIT_CHECKPOINT", "POD_NAME", "POD_NAMESPACE")


def settings(environment: dict[str, str]) -> dict[str, str]:
    """Return the settings of Spark for a driver in a pod."""
    image, namespace = environment["GODWIT_IMAGE"], environment["POD_NAMESPACE"]
    volume = "spark.kubernetes.executor.volumes.emptyDir.spark-local-dir-1"
    return {
        "spark.master": "k8s://https://kubernetes.default.svc",
        "spark.kubernetes.namespace": namespace,
        "spark.kubernetes.container.image": image,
        "spark.kubernetes.authenticate.driver.serviceAccountName": "godwit-driver",
        # Executors reach the checkpoint by themselves, with the secret of the driver.
        **{
            f"spark.kubernetes.executor.secretKeyRef.{name}": f"godwit-store:{name}"
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        },
        # Executors find the driver by its service, and go with its pod.
        "spark.driver.host": f"godwit-driver.{namespace}.svc",
        "spark.driver.bindAddress": "0.0.0.0",  # noqa: S104  in its pod
        "spark.driver.port": "7078",
        "spark.driver.blockManager.port": "7079",
        "spark.kubernetes.driver.pod.name": environment["POD_NAME"],
        "spark.executor.instances": environment.get("GODWIT_EXECUTORS", "2"),
        "spark.executor.cores": "2",
        "spark.executor.memory": "2g",
        # Local stores and shuffle files; without it they lie in the container's layer.
        f"{volume}.mount.path": "/var/data/spark",
        # Godwit asks for executors itself: one that is idle may hold state.
        "spark.dynamicAllocation.enabled": "false",
        "spark.scheduler.mode": "FAIR",
    }


def build() -> gw.Flow:
    """Draw the flow."""
    flow = gw.Flow("ticks")
    ticks = flow.source("ticks", gw.sources.rate(1000.0, num_keys=100))
    counts = ticks.key_by("key").compute(name="counts", ticks=gw.count())
    flow.sink("counts", counts, gw.sinks.noop())
    return flow


def main() -> None:
    """Run until the pod is told to end."""
    if missing := [name for name in NEEDED if name not in os.environ]:
        sys.exit(f"Not set: {', '.join(missing)}. godwit.yaml sets them in the driver's pod.")
    builder = SparkSession.builder.appName("godwit")
    for name, value in settings(dict(os.environ)).items():
        builder = builder.config(name, value)
    query = build().start(
        checkpoint=os.environ["GODWIT_CHECKPOINT"],
        session=builder.getOrCreate(),
        executors=int(os.environ.get("GODWIT_EXECUTORS", "2")),
        sizing=gw.Sizing(executors_timeout_s=600.0),
        observability=gw.Observability(metrics_port=9091, metrics_host="0.0.0.0"),  # noqa: S104
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()

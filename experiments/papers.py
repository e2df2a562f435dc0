"""The five papers, and the figures of theirs that are not redrawn, each with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.cli.reproduce.catalogue import Paper

if TYPE_CHECKING:
    from collections.abc import Mapping

_SENDERS = (
    "the simulator has no synchronisation of senders, which the baseline needs and Godwit does not"
)
_TRANSFER = "the simulator has no row sizes, hence no cost of sending rows to remote lanes"

PAPERS: Mapping[str, Paper] = {
    "paper1": Paper(
        title="Efficient Operator State Migration for Cloud-Based Data Stream Management Systems",
        short="operator state migration",
        authors="Jianbing Ding, Tom Z. J. Fu, Richard T. B. Ma, Marianne Winslett, Yin Yang, "
        "Zhenjie Zhang, Hongyang Chao",
        venue="manuscript, without venue or year; its latest reference is of 2015",
        missing={
            "figure16": (
                "Window size against response time of frequent patterns",
                "the application runs (examples/frequent_patterns.py); its rates want a cluster",
            ),
        },
    ),
    "paper2": Paper(
        title="Integrative Dynamic Reconfiguration in a Parallel Stream Processing Engine",
        short="ALBIC",
        authors="Kasper Grud Skat Madsen, Yongluan Zhou, Jianneng Cao",
        venue="arXiv:1602.03770, 1 February 2016",
        missing={},
    ),
    "paper3": Paper(
        title="Enorm: Efficient Window-Based Computation in Large-Scale Distributed Stream "
        "Processing Systems",
        short="Enorm",
        authors="Kasper Grud Skat Madsen, Yongluan Zhou, Li Su",
        venue="DEBS 2016",
        missing={
            "figure11": (
                "Overhead of split and combine",
                "it needs Spark; `python -m benchmarks.windows` measures splitting there",
            ),
            "figure12": (
                "Overhead of instant and disruptive migration by share of the state",
                "it needs Spark, and is not written yet",
            ),
            "figure13": (
                "Latency under changing load, instant against disruptive",
                "it needs Spark and an hour of a cluster, and is not written yet",
            ),
        },
    ),
    "paper4": Paper(
        title="Stateful Load Balancing for Parallel Stream Processing",
        short="MCLB",
        authors="Qingsong Guo, Yongluan Zhou",
        venue="Euro-Par 2017: Parallel Processing Workshops",
        missing={},
    ),
    "paper5": Paper(
        title="Elasticutor: Rapid Elasticity for Realtime Stateful Stream Processing",
        short="Elasticutor",
        authors="Li Wang, Tom Z. J. Fu, Richard T. B. Ma, Marianne Winslett, Zhenjie Zhang",
        venue="SIGMOD 2019",
        missing={
            "figure8": ("Costs and sizes of rows against throughput", _TRANSFER),
            "figure11": (
                "Time of a shard's reassignment, in parts",
                _SENDERS,
            ),
            "figure13": ("Scalability of one executor by costs and sizes of rows", _TRANSFER),
            "figure14": ("99th percentile of latency as one executor grows", _TRANSFER),
            "figure15": ("Scalability of one elastic executor by state size", _TRANSFER),
            "figure18": (
                "Arrival rates of the five most popular stocks",
                "it shows the paper's data, which are not public",
            ),
        },
    ),
}

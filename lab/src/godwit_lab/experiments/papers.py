"""The five papers, and the figures of theirs that are not redrawn, each with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit_lab.cli.reproduce.catalogue import Paper

if TYPE_CHECKING:
    from collections.abc import Mapping

_STOPPED = (
    "its longer part is the time in which senders are stopped and the network is emptied; Godwit "
    "does neither, since key groups change place between two epochs. The other part, the state, is "
    "figure 12"
)

PAPERS: Mapping[str, Paper] = {
    "paper1": Paper(
        title="Efficient Operator State Migration for Cloud-Based Data Stream Management Systems",
        short="operator state migration",
        authors="Jianbing Ding, Tom Z. J. Fu, Richard T. B. Ma, Marianne Winslett, Yin Yang, "
        "Zhenjie Zhang, Hongyang Chao",
        venue="manuscript, without venue or year; its latest reference is of 2015",
        missing={},
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
        missing={},
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
            "figure11": (
                "Time of a shard's reassignment, in parts",
                _STOPPED,
            ),
        },
    ),
}

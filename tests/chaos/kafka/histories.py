"""Random lives of a flow over Kafka or files, as plain values.

A round starts a driver, puts rows, does a deed, and ends with the driver dead or stopped.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

__all__ = ["KINDS", "SOURCES", "TARGETS", "History", "draw_history"]

KINDS = ("totals", "rows", "windows")
SOURCES = ("kafka", "files")
TARGETS = ("kafka", "parquet", "delta", "postgres")
STEPS = ("planned", "staged", "committed", "delivered", "delivering", "commit", "answered")
CUTS = {  # requests of the driver's by which connections are cut → how many pass before, at most
    "InitProducerId": 0,
    "AddPartitionsToTxn": 3,
    "Produce": 3,
    "AddOffsetsToTxn": 3,
    "TxnOffsetCommit": 3,
    "EndTxn": 3,
    "OffsetFetch": 0,
    "ListOffsets": 3,
    "Fetch": 20,
}
PUTS = ("plain", "plain", "committed", "committed", "aborted", "open", "end", "bad")


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A life.

    Attributes
    ----------
    seed
        What it was drawn from.
    source
        ``"kafka"`` or ``"files"``.
    partitions
        Of the topic that is read, at first.
    outputs
        Kind of operator → target of its sink.
    limit
        Offsets that an epoch reads at most, if there is a limit.
    rejects
        Target of what cannot be read.
    rounds
        ``puts`` (kind and rows of each), ``deed`` and its details, ``migrations``, ``partitions``
        that are added, ``executors`` (name → lanes), ``meddles`` (another member joins the group),
        ``cuts`` (requests by which, or by whose answer, the network or the broker fails).
    """

    seed: int
    source: str
    partitions: int
    outputs: dict[str, str]
    limit: int | None
    rejects: str
    rounds: tuple[dict[str, Any], ...]


def draw_history(
    seed: int,
    rounds: int,
    *,
    sources: tuple[str, ...] = SOURCES,
    targets: tuple[str, ...] = TARGETS,
    on_spark: bool = False,
) -> History:
    """Draw a history of so many rounds; the last one brings everything to its end."""
    rng = random.Random(seed)
    kinds = rng.sample(KINDS, rng.randint(1, 3))
    told = [_round(rng, on_spark=on_spark) for _ in range(rounds - 1)]
    last = {"deed": "finish", "migrations": 0, "partitions": 0, "meddles": False}
    last |= {"puts": [], "cuts": []}
    return History(
        seed=seed,
        partitions=rng.randint(1, 3),
        outputs={kind: rng.choice(targets) for kind in kinds},
        limit=rng.choice([None, 7, 50]),
        rejects=rng.choice(targets[:2]),
        rounds=(*told, {**last, "executors": {"1": 2}}),
        source=rng.choice(sources),
    )


def _round(rng: random.Random, *, on_spark: bool) -> dict[str, Any]:
    return {
        "puts": [(rng.choice(PUTS), rng.randint(1, 40)) for _ in range(rng.randint(1, 6))],
        "partitions": int(rng.random() < 0.15),
        "migrations": rng.randint(0, 2),
        "meddles": rng.random() < 0.2,
        "executors": {str(n): rng.randint(1, 2) for n in range(1, rng.randint(1, 3) + 1)},
        "cuts": [_cut(rng) for _ in range(rng.choice([0, 1, 1, 2, 4]))],
        **_deed(rng, on_spark=on_spark),
    }


def _cut(rng: random.Random) -> dict[str, Any]:
    api = rng.choices([*CUTS], [1, 2, 3, 2, 3, 5, 1, 1, 1])[0]
    way = {
        "lost": {},
        "down": {"down_s": rng.uniform(0.05, 1.2)},
        "halted": {"halt_s": rng.uniform(0.05, 1.2)},
    }
    return {
        "api": api,
        "skip": rng.randint(0, CUTS[api]),
        "answer": rng.random() < 0.6,
        **way[rng.choices([*way], [4, 4, 2])[0]],
    }


def _deed(rng: random.Random, *, on_spark: bool) -> dict[str, Any]:
    kinds = {"finish": 2, "kill": 3, "kill at": 5, "halt broker": 2, "restart broker": 2}
    if on_spark:
        kinds |= {"kill lane": 4, "kill executor": 3}
    kind = rng.choices([*kinds], [*kinds.values()])[0]
    match kind:
        case "kill":
            return {"deed": kind, "after_s": rng.uniform(0.0, 0.8)}
        case "kill at":
            return {"deed": kind, "step": rng.choice(STEPS), "epoch": rng.randint(0, 2)}
        case "halt broker" | "restart broker":
            return {
                "deed": kind,
                "after_s": rng.uniform(0.0, 0.4),
                "for_s": rng.uniform(0.05, 1.2),
                "then": rng.choice(["kill", "finish", "finish"]),
            }
        case "kill lane" | "kill executor":
            return {"deed": kind, "after_s": rng.uniform(0.0, 0.8)}
        case _:
            return {"deed": kind}

"""Random lives of a flow over Kafka or files, as plain values.

A round starts a driver, puts rows, does a deed, and ends with the driver dead or stopped.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["SOURCES", "STEPS", "TARGETS", "History", "draw_history"]

KINDS = ("totals", "rows", "windows")
SOURCES = ("kafka", "files")
TARGETS = ("kafka", "parquet", "delta", "postgres")
STEPS = ("planned", "staged", "committed", "delivered", "answered", "delivering", "commit")
"""Points at which drivers die: see `tests.chaos.kafka.flow.die_at`."""
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
    lane_files
        Whether lanes write the files of sinks that have files; else the driver does.
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
    lane_files: bool
    limit: int | None
    rejects: str
    rounds: tuple[dict[str, Any], ...] = ()

    @property
    def writes_to_kafka(self) -> bool:
        """Return whether a sink writes to the broker."""
        return "kafka" in (*self.outputs.values(), self.rejects)

    @property
    def steps(self) -> tuple[str, ...]:
        """Points of `STEPS` that a driver comes to, again and again, while it gets rows."""
        never = set()
        if self.outputs.keys() == {"windows"}:  # which give rows at their end only
            never.add("delivering")
        if not self.writes_to_kafka:
            never.add("commit")
        return tuple(step for step in STEPS if step not in never)


def draw_history(
    seed: int,
    rounds: int,
    *,
    sources: tuple[str, ...] = SOURCES,
    targets: tuple[str, ...] = TARGETS,
    parts: tuple[str, ...] = (),
) -> History:
    """Draw a history of so many rounds; the last one brings everything to its end.

    `parts`: parts of a driver that can be killed by themselves.
    """
    rng = random.Random(seed)
    history = History(
        seed=seed,
        source=rng.choice(sources),
        partitions=rng.randint(1, 3),
        outputs={kind: rng.choice(targets) for kind in rng.sample(KINDS, rng.randint(1, 3))},
        lane_files=rng.random() < 0.5,
        limit=rng.choice([None, 7, 50]),
        rejects=rng.choice(targets[:2]),
    )
    told = [_round(rng, history, parts) for _ in range(rounds - 1)]
    last = {"deed": "finish", "migrations": 0, "partitions": 0, "meddles": False}
    last |= {"puts": [], "cuts": []}
    return replace(history, rounds=(*told, {**last, "executors": {"1": 2}}))


def _round(rng: random.Random, history: History, parts: tuple[str, ...]) -> dict[str, Any]:
    reads_kafka = history.source == "kafka"
    num_cuts = rng.choice([0, 1, 1, 2, 4]) if reads_kafka or history.writes_to_kafka else 0
    return {
        "puts": [(rng.choice(PUTS), rng.randint(1, 40)) for _ in range(rng.randint(1, 6))],
        "partitions": int(reads_kafka and rng.random() < 0.15),
        "migrations": rng.randint(0, 2),
        "meddles": reads_kafka and rng.random() < 0.2,
        "executors": {str(n): rng.randint(1, 2) for n in range(1, rng.randint(1, 3) + 1)},
        "cuts": [_cut(rng) for _ in range(num_cuts)],
        **_deed(rng, history, parts),
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


def _deed(rng: random.Random, history: History, parts: tuple[str, ...]) -> dict[str, Any]:
    kinds = {"finish": 2, "kill": 3, "kill at": 5} | {f"kill {part}": 4 for part in parts}
    if history.source == "kafka" or history.writes_to_kafka:
        kinds |= {"halt broker": 2, "restart broker": 2}
    kind = rng.choices([*kinds], [*kinds.values()])[0]
    match kind:
        case "finish":
            return {"deed": kind}
        case "kill at":
            return {"deed": kind, "step": rng.choice(history.steps), "epoch": rng.randint(0, 2)}
        case "halt broker" | "restart broker":
            return {
                "deed": kind,
                "after_s": rng.uniform(0.0, 0.4),
                "for_s": rng.uniform(0.05, 1.2),
                "then": rng.choice(["kill", "finish", "finish"]),
            }
        case _:
            return {"deed": kind, "after_s": rng.uniform(0.0, 0.8)}

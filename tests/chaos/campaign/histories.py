"""Random histories as plain values, so that they can be passed to a program.

A history is the life of one checkpoint in rounds.  A round starts the flow as it is by then, puts
files, does a deed, and ends by stopping, failing or dying.  The flow may change between two rounds.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field
from typing import Any

__all__ = ["AGGREGATES", "History", "Operator", "draw_history", "shape_of"]

AGGREGATES = ("count", "sum", "min", "max", "mean", "last")
STEPS = ("planned", "staged", "committed", "delivered")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator of a flow.

    Attributes
    ----------
    uid
        What it is, whatever it is called.
    name, formerly
        What it is called, and what it was called before, if it was renamed.
    kind
        ``"compute"``, or ``"process"``, which insists on the order of its rows.
    by
        Key column.
    results
        Of ``"compute"``: (result, aggregate), in the order they are written.
    """

    uid: str
    name: str
    formerly: str = ""
    kind: str = "compute"
    by: str = "k"
    results: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A life.

    Attributes
    ----------
    seed
        What it was drawn from.
    num_key_groups
        Key groups of the flow.
    generations
        The flow's operators, generation by generation.
    rounds
        ``generation``, ``files`` (their number), ``deed`` and its details.
    """

    seed: int
    num_key_groups: int
    generations: tuple[tuple[Operator, ...], ...]
    rounds: tuple[dict[str, Any], ...] = field(default=())


def shape_of(operator: Operator) -> str:
    """Name for the columns that an operator emits."""
    return hashlib.md5(repr((operator.by, operator.results)).encode()).hexdigest()[:8]


def draw_history(seed: int, rounds: int) -> History:
    """Draw a history of so many rounds; the last one brings everything to its end."""
    rng = random.Random(seed)
    names = iter(f"op{number}" for number in range(10_000))
    generations = [tuple(_new_operator(rng, next(names)) for _ in range(rng.randint(1, 3)))]
    told = []
    for number in range(rounds):
        if number and rng.random() < 0.4:
            generations.append(_changed(rng, generations[-1], names))
        told.append(
            {
                "generation": len(generations) - 1,
                "files": rng.randint(0, 3) if number else rng.randint(1, 3),
                "migrations": rng.randint(0, 2),
                **(_deed(rng) if number < rounds - 1 else {"deed": "finish"}),
            }
        )
    return History(
        seed=seed,
        num_key_groups=rng.choice([1, 4, 16]),
        generations=tuple(generations),
        rounds=tuple(told),
    )


def _new_operator(rng: random.Random, name: str) -> Operator:
    if rng.random() < 0.3:
        return Operator(uid=name, name=name, kind="process", by=rng.choice(["k", "shard"]))
    chosen = rng.sample(AGGREGATES, rng.randint(1, 4))
    return Operator(
        uid=name,
        name=name,
        by=rng.choice(["k", "shard"]),
        results=tuple((f"{name}_{aggregate}", aggregate) for aggregate in chosen),
    )


def _changed(rng: random.Random, old: tuple[Operator, ...], names: Any) -> tuple[Operator, ...]:
    """Change a flow once or twice, in ways that must not cost the checkpoint."""
    made = [_same(operator) for operator in old]
    for _ in range(rng.randint(1, 2)):
        at = rng.randrange(len(made))
        match rng.choice(["reorder", "shuffle", "add", "remove", "rename", "gain", "lose"]):
            case "reorder":
                results = list(made[at].results)
                rng.shuffle(results)
                made[at] = _same(made[at], results=tuple(results))
            case "shuffle":
                rng.shuffle(made)
            case "add":
                made.append(_new_operator(rng, next(names)))
            case "remove" if len(made) > 1:
                del made[at]
            case "rename" if not made[at].formerly and any(o.name == made[at].name for o in old):
                # Once in a life: a name that no epoch was committed under cannot be gone on from.
                made[at] = _same(made[at], name=next(names), formerly=made[at].name)
            case "gain" if made[at].kind == "compute":
                aggregate = rng.choice(AGGREGATES)
                result = f"{next(names)}_{aggregate}"
                place = rng.randint(0, len(made[at].results))
                results = list(made[at].results)
                results.insert(place, (result, aggregate))
                made[at] = _same(made[at], results=tuple(results))
            case "lose" if len(made[at].results) > 1:
                results = list(made[at].results)
                del results[rng.randrange(len(results))]
                made[at] = _same(made[at], results=tuple(results))
            case _:
                pass
    return tuple(made)


def _same(
    operator: Operator,
    *,
    name: str | None = None,
    formerly: str | None = None,
    results: tuple[tuple[str, str], ...] | None = None,
) -> Operator:
    return Operator(
        uid=operator.uid,
        name=operator.name if name is None else name,
        formerly=operator.formerly if formerly is None else formerly,
        kind=operator.kind,
        by=operator.by,
        results=operator.results if results is None else results,
    )


def _deed(rng: random.Random) -> dict[str, Any]:
    kind = rng.choices(
        ["finish", "stop", "stop in listener", "stop twice", "fail", "kill", "kill at", "die"],
        [2, 3, 2, 1, 4, 1, 2, 2],
    )[0]
    match kind:
        case "stop" | "stop twice" | "kill":
            return {"deed": kind, "after_s": rng.uniform(0.0, 2.5)}
        case "stop in listener":
            return {"deed": kind, "event": rng.randint(1, 8)}
        case "fail" | "kill at":
            return {"deed": kind, "step": rng.choice(STEPS), "epoch": rng.randint(0, 2)}
        case _:
            return {"deed": kind}

"""Scenarios: the whole input of a simulated run as one value, and those with names.

Rates follow from the cluster: `load` is the share of the time that its cores are busy at the usual
rate.  Work is what paper 5 §5.1 has: keys with Zipf frequencies, 1 ms a row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from godwit.migration import Policy
from godwit.model.errors import InvalidProblemError
from godwit_lab.simulator.cluster import Death, Machine, Pool, SimulatedCluster, Slowdown
from godwit_lab.simulator.costs import CostModel
from godwit_lab.simulator.flow import SimulatedComponent, UpstreamFeed
from godwit_lab.simulator.workload import Keys, Rate, Surge

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from godwit.model.assignment import Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Input of a simulated run: cluster, flow, rows and costs."""

    cluster: SimulatedCluster  # where it runs
    components: tuple[SimulatedComponent, ...]  # what runs
    rate: Rate  # of rows that come
    keys: Keys
    duration_s: float  # how long rows come
    # least time from the start of a micro-batch to that of the next; 0: as soon as possible
    trigger_s: float = 0.0
    # max. rows of a micro-batch; the others wait at the source
    max_rows: int | None = None
    # target length of an epoch in seconds: rows above the recent processing rate wait at the
    # source, too (`godwit.engine.row_limit`). ``None``: epochs grow without end
    longest_epoch_s: float | None = None
    costs: CostModel = field(default_factory=CostModel.calibrated)  # what an epoch costs
    # size of a source row. Then rows that go to another executor take the time of the machines'
    # links, before the lanes begin. ``None``: they take none, as between processes of one machine
    row_bytes: int | None = None
    # whether the stream has run for long: every key has state, and executors have copies of what
    # they own. Otherwise there is no state at all at first.
    held: bool = True
    policy: Policy = field(default_factory=Policy)  # what holds for migrations during the whole run
    # component → where its key groups are at first; left out: dealt out evenly
    assignments: dict[str, Assignment] = field(default_factory=dict)

    def __post_init__(self) -> None:
        too_few = self.max_rows is not None and self.max_rows < 1
        too_short = self.longest_epoch_s is not None and not self.longest_epoch_s > 0
        if self.row_bytes is not None and self.row_bytes < 0:
            raise InvalidProblemError(
                f"Source rows of {self.row_bytes} bytes cannot be simulated.",
                remedy="Give their size on the network, or leave it out to not count it.",
                field="row_bytes",
                value=self.row_bytes,
            )
        if not self.duration_s > 0 or self.trigger_s < 0 or too_few or too_short:
            raise InvalidProblemError(
                f"A run of {self.duration_s} s with a trigger of {self.trigger_s} s and "
                f"micro-batches of at most {self.max_rows} rows and {self.longest_epoch_s} s "
                "cannot be simulated.",
                remedy="Give a positive duration, a trigger of at least 0, at least one row, and "
                "epochs of a positive length.",
                field="scenario",
            )


_ROW_MS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Size of a scenario: executors, key groups, keys, load and duration."""

    executors: int = 8  # at first
    cores: int = 2  # of each
    key_groups: int = 256  # of every component
    keys: int = 10_000
    zipf: float = 0.8  # exponent of their frequencies
    load: float = 0.6  # share of the time that cores are busy at the usual rate, in (0, 1)
    duration_s: float = 120.0  # how long

    def __post_init__(self) -> None:
        if not 0 < self.load < 1:
            raise InvalidProblemError(
                f"A load of {self.load} is wrong.",
                remedy="Give the share of the time that cores are to be busy, between 0 and 1.",
                field="load",
            )

    @property
    def machines(self) -> tuple[Machine, ...]:
        """Executors at the start."""
        return (Machine(cores=self.cores),) * self.executors

    def rate(self, *surges: Surge, steps: int = 1) -> Rate:
        """Return the usual arrival rate, with surges: a share `load` of what all cores can process.

        Rows cost `_ROW_MS` milliseconds in each of `steps` operators.
        """
        rows_per_s = self.load * self.executors * self.cores * 1000 / (_ROW_MS * steps)
        return Rate(rows_per_s=rows_per_s, noise=0.1, surges=surges)

    @property
    def max_rows(self) -> int:
        """Maximum rows of a micro-batch: those of four seconds at the usual rate."""
        return int(4 * self.rate().rows_per_s)


def _scenario(
    size: Size,
    *surges: Surge,
    components: tuple[SimulatedComponent, ...] = (),
    shifts_s: tuple[float, ...] = (),
    **cluster: Any,
) -> Scenario:
    """Return a scenario; without `components`, its flow has one of the usual cost.

    `shifts_s`: times at which keys' frequencies are shuffled, in seconds. `cluster`: further fields
    of `SimulatedCluster`.
    """
    work = SimulatedComponent(
        name="work", key_groups=size.key_groups, row_ms=_ROW_MS, key_bytes=10_000
    )
    return Scenario(
        cluster=SimulatedCluster(machines=size.machines, **cluster),
        components=components or (work,),
        rate=size.rate(*surges, steps=max(len(components), 1)),
        keys=Keys(number=size.keys, zipf=size.zipf, shifts_s=shifts_s),
        duration_s=size.duration_s,
        max_rows=size.max_rows,
    )


def skew(size: Size) -> Scenario:
    """Return the scenario in which keys are shuffled twice a minute (paper 5 §5.1, ω = 2)."""
    return _scenario(size, shifts_s=tuple(range(30, int(size.duration_s), 30)))


def surge(size: Size) -> Scenario:
    """Return the scenario in which the rate is four times as high in the middle third.

    More executors are available.
    """
    third = size.duration_s / 3
    return _scenario(
        size,
        Surge(start_s=third, end_s=2 * third, factor=4),
        added=size.machines[0],
        pool=Pool(most=4 * size.executors, start_s=(3.0, 6.0)),
    )


def straggler(size: Size) -> Scenario:
    """Return the scenario in which one executor becomes three times slower after a quarter."""
    slow = Slowdown(executor="0", start_s=size.duration_s / 4, factor=3)
    return _scenario(size, slowdowns=(slow,))


def loss(size: Size) -> Scenario:
    """Return the scenario in which an executor is lost after a quarter, and replaced late."""
    return _scenario(
        size,
        added=size.machines[0],
        deaths=(Death(executor="0", at_s=size.duration_s / 4),),
        pool=Pool(most=size.executors, start_s=(10.0, 20.0)),
    )


def pairs(size: Size) -> Scenario:
    """Return the scenario of three operators in sequence with one-to-one traffic (paper 2 §5.3)."""
    names = ("first", "second", "third")
    chain = tuple(
        SimulatedComponent(
            name=name,
            key_groups=size.key_groups,
            row_ms=_ROW_MS,
            feeds=(UpstreamFeed(upstream=names[index - 1], paired=0.8),) if index else (),
        )
        for index, name in enumerate(names)
    )
    return _scenario(size, components=chain)


SCENARIOS: Mapping[str, Callable[[Size], Scenario]] = {
    "skew": skew,
    "surge": surge,
    "straggler": straggler,
    "loss": loss,
    "pairs": pairs,
}


def scenario(name: str, size: Size) -> Scenario:
    """Return the scenario with a name; raise `InvalidProblemError` if there is none."""
    if name not in SCENARIOS:
        raise InvalidProblemError(
            f"There is no scenario {name!r}.",
            remedy=f"Choose one of {', '.join(SCENARIOS)}.",
            field="scenario",
            value=name,
        )
    return SCENARIOS[name](size)

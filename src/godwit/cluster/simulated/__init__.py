"""A cluster in numbers: the real conductor, planners and controller in virtual time.

The problem: whether a stream balances and scales itself well shows on sixty executors, thousands of
key groups, hours of shifting load and rare faults, none of which fit on a laptop.

The idea: everything that decides in Godwit is free of I/O and asks the world through ports, so here
is another world behind the same ports.  `Simulation` drives the very `Conductor` (with its
migration protocol) and the very controller that Spark drives; planners are those of the registry;
what an epoch did is the same `EpochOutcome`.  Only what runs is replaced by arithmetic.

What is modelled, one file each, in the order to read them:

========================= =========================================================================
`scenario`                everything a run is given, as one value
`arrivals`                when rows come: a rate with surges and noise, as a cumulative curve
`keys`                    Zipf frequencies over keys, dealt out over key groups, that shift
`source`                  the rows of a scenario, batch by batch
`components`, `routing`   keyed components in levels, rows between their key groups
`cluster`                 cores, speeds, slowdowns, deaths, late executors, the pool of more
`costs`                   what an epoch costs, fitted to real runs
`flow`                    one epoch: rows through components, the slowest lane of every level
`wait_buffers`            rows of suspended key groups, in order; lost or overtaken rows show
`holdings`                snapshots, changelogs, and which executor holds which version
`links`, `warming`        transfers over shared links; copies warmed from peers and checkpoint
`delays`                  how long rows take, exactly, from the cumulative curves
`run`, `history`          virtual time, and what a run tells
`controlled`              the real controller for it
`scenarios`               scenarios by name, for a cluster of any size
`peer_transfers`          a plan's transfers between executors, in phases and unscheduled
========================= =========================================================================

What is not: rows have no contents (they are counted and numbered per key group); within an epoch
time stands still (a slowdown takes effect at the next one); distinct keys are expectations; Spark's
scheduler, garbage collection, disks and the network's core cost nothing.

Equal scenarios and seeds give equal histories, whatever the machine.

Examples
--------
>>> scenario = Scenario(
...     cluster=Cluster(machines=(Machine(cores=2),) * 2),
...     components=(Component(name="sums", key_groups=16, row_ms=0.1),),
...     rate=Rate(rows_per_s=2000),
...     keys=Keys(number=100, zipf=1.0),
...     duration_s=5,
... )
>>> history = Simulation(scenario, seed=1).run()
>>> sum(record.rows for record in history.epochs) > 8000
True
"""

from godwit.cluster.simulated.arrivals import Rate, Surge
from godwit.cluster.simulated.cluster import Cluster, Death, Join, Machine, Pool, Slowdown
from godwit.cluster.simulated.components import Component, Feed
from godwit.cluster.simulated.controlled import controlled_by
from godwit.cluster.simulated.costs import CostModel, calibration
from godwit.cluster.simulated.delays import Delays
from godwit.cluster.simulated.history import EpochRecord, History
from godwit.cluster.simulated.keys import Keys, KeySpread
from godwit.cluster.simulated.links import Links
from godwit.cluster.simulated.peer_transfers import shortest_s, transfer_s
from godwit.cluster.simulated.run import Simulation
from godwit.cluster.simulated.scenario import Scenario

__all__ = [
    "Cluster",
    "Component",
    "CostModel",
    "Death",
    "Delays",
    "EpochRecord",
    "Feed",
    "History",
    "Join",
    "KeySpread",
    "Keys",
    "Links",
    "Machine",
    "Pool",
    "Rate",
    "Scenario",
    "Simulation",
    "Slowdown",
    "Surge",
    "calibration",
    "controlled_by",
    "shortest_s",
    "transfer_s",
]

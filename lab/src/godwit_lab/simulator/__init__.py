"""A cluster in numbers: the real coordinator, planners and controller in virtual time.

The problem: whether a stream balances and scales itself well shows on sixty executors, thousands of
key groups, hours of shifting load and rare faults, none of which fit on a laptop.

The idea: everything that decides in Godwit is free of I/O and asks the world through ports, so here
is another world behind the same ports.  `Simulation` drives the very `Coordinator` (with its
migration protocol) and the very controller that Spark drives; planners are those of the registry;
what an epoch did is the same `EpochOutcome`.  Only what runs is replaced by arithmetic.

The models, one file each, in the order to read them:

============== ====================================================================================
`scenario`     everything a run is given, as one value; scenarios by name
`workload`     when rows come, batch by batch, and Zipf frequencies of their keys, that shift
`cluster`      cores, speeds, slowdowns, deaths, late executors, the pool of more
`costs`        what an epoch costs, fitted to real runs
`flow`         one epoch: rows through components, the slowest lane of every level
`holdings`     state and its copies; rows of suspended key groups, in order
`transfers`    shared links, copies that are warmed over them
`run`          virtual time and the epoch loop, with the real controller
`history`      what a run tells, with the exact delays of rows
============== ====================================================================================

Simplifications: rows have no contents (they are counted and numbered per key group); within an
epoch time stands still (a slowdown takes effect at the next one); distinct keys are expectations;
Spark's scheduler, garbage collection, disks and the network's core cost nothing.

Equal scenarios and seeds give equal histories, regardless of the machine.

Examples
--------
>>> scenario = Scenario(
...     cluster=SimulatedCluster(machines=(Machine(cores=2),) * 2),
...     components=(SimulatedComponent(name="sums", key_groups=16, row_ms=0.1),),
...     rate=Rate(rows_per_s=2000),
...     keys=Keys(number=100, zipf=1.0),
...     duration_s=5,
... )
>>> history = Simulation(scenario, seed=1).run()
>>> sum(record.rows for record in history.epochs) > 8000
True
"""

from godwit_lab.simulator.cluster import Death, Join, Machine, Pool, SimulatedCluster, Slowdown
from godwit_lab.simulator.costs import CostModel, calibration
from godwit_lab.simulator.flow import SimulatedComponent, UpstreamFeed
from godwit_lab.simulator.history import Delays, EpochRecord, History
from godwit_lab.simulator.run import Simulation, controlled_by
from godwit_lab.simulator.scenario import Scenario
from godwit_lab.simulator.transfers import Links
from godwit_lab.simulator.workload import Keys, KeySpread, MeasuredKeyGroups, Rate, Surge

__all__ = [
    "CostModel",
    "Death",
    "Delays",
    "EpochRecord",
    "History",
    "Join",
    "KeySpread",
    "Keys",
    "Links",
    "Machine",
    "MeasuredKeyGroups",
    "Pool",
    "Rate",
    "Scenario",
    "SimulatedCluster",
    "SimulatedComponent",
    "Simulation",
    "Slowdown",
    "Surge",
    "UpstreamFeed",
    "calibration",
    "controlled_by",
]

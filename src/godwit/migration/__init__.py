"""Live migration: key groups change executor while the stream flows, and no row is lost.

A local store is a cache of a committed version, so state is never "sent away".  A copy is *warmed*
at the destination while the source goes on processing; once it lags by a few epochs at most, the
assignment switches between two epochs and the lane applies the rest.  Invariants:

1. The assignment of an epoch is total and fixed while the epoch runs.
2. A key group that runs is warm where it runs, or was ordered to be loaded there.  A key group
   that is neither is *suspended*: its rows wait in the changelog, and other key groups go on.
3. Key groups and bytes in flight are bounded (a *mini-migration*), for every plan.

`MigrationProtocol` is a state machine without I/O: it has a method for every fact, which returns
the commands that follow (``commands``).  A runtime drives the `Coordinator`, which owns the
protocol and the record of copies, and acts through `Ports`.

Source: Ding et al., "Optimal operator state migration for elastic data stream processing", §3
(wait buffers, progressive migration, transfer phases); the strategies' names are Madsen et al.,
"Enorm", §4.5.
"""

from godwit.migration.commands import (
    Announce,
    Command,
    DropCopies,
    EndMigration,
    MigrationOutcome,
    PeerCopies,
    StartWarming,
    SwitchAssignment,
)
from godwit.migration.coordinator import Coordinator, Ports, Warmed
from godwit.migration.copies import Copies
from godwit.migration.inputs import LanesRequested, MigrationRequested, RunStarted
from godwit.migration.outcome import ComponentTraffic, EpochOutcome, LoadSummary
from godwit.migration.protocol import MigrationProtocol
from godwit.migration.regrouping import EndRegrouping, Regrouping, RegroupingStage
from godwit.migration.sources import Delivery, PeerLinks
from godwit.migration.state import ComponentView, ProtocolView, SlotPair
from godwit.migration.strategy import Bounds, CopiesFrom, LossPolicy, Policy, Strategy
from godwit.model.key_groups import KeyGroupLoad

__all__ = [
    "Announce",
    "Bounds",
    "Command",
    "ComponentTraffic",
    "ComponentView",
    "Coordinator",
    "Copies",
    "CopiesFrom",
    "Delivery",
    "DropCopies",
    "EndMigration",
    "EndRegrouping",
    "EpochOutcome",
    "KeyGroupLoad",
    "LanesRequested",
    "LoadSummary",
    "LossPolicy",
    "MigrationOutcome",
    "MigrationProtocol",
    "MigrationRequested",
    "PeerCopies",
    "PeerLinks",
    "Policy",
    "Ports",
    "ProtocolView",
    "Regrouping",
    "RegroupingStage",
    "RunStarted",
    "SlotPair",
    "StartWarming",
    "Strategy",
    "SwitchAssignment",
    "Warmed",
]

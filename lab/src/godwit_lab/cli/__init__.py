"""Commands of the laboratory: entry points of the group ``godwit.commands``."""

from __future__ import annotations

from godwit.cli.command import Command

PLAN = Command(
    module="godwit_lab.cli.plan",
    purpose="what a planner would do with a problem",
)
SIM = Command(
    module="godwit_lab.cli.sim",
    purpose="what the controller would do on a cluster that you do not have",
)
WHAT_IF = Command(
    module="godwit_lab.cli.what_if",
    purpose="latency of a stream with other executors or rates, before you pay for them",
)
REPRODUCE = Command(
    module="godwit_lab.cli.reproduce.command",
    purpose="redraw the figures of the papers, and say where ours agree",
)
ARENA = Command(
    module="godwit_lab.cli.arena",
    purpose="autoscalers side by side on the same streams, in virtual time",
)

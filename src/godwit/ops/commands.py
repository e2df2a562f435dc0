"""Commands of this district, as the entry points of ``godwit.commands`` name them."""

from __future__ import annotations

from typing import Final

from godwit.cli.command import Command

_CLI: Final = "godwit-streams[cli]"

CHECKPOINT: Final = Command(
    module="godwit.ops.checkpoint",
    purpose="inspect, verify, copy, edit and repair a checkpoint",
    needs="rich",
    install=_CLI,
)
EXPORT_STATE: Final = Command(
    module="godwit.ops.export_state",
    purpose="the state of a query as Parquet tables, one for each operator",
)
DEMO: Final = Command(
    module="godwit.ops.demo.command",
    purpose="a live migration and a killed executor, on your machine, in a minute or two",
    needs="matplotlib",
    install="godwit-streams[demo]",
)
TOP: Final = Command(
    module="godwit.ops.top",
    purpose="a running stream in the terminal: load, speed, migrations, decisions",
    needs="rich",
    install=_CLI,
)
RUN: Final = Command(
    module="godwit.ops.supervision",
    purpose="run a program that starts a query, and restart it when it fails",
)
STATUS: Final = Command(
    module="godwit.ops.status",
    purpose="whether the query of a checkpoint runs, and its progress, for scripts and probes",
)
STOP: Final = Command(
    module="godwit.ops.requests",
    purpose="stop the query of a checkpoint after its current epoch, from any machine",
)
DRAIN: Final = Command(
    module="godwit.ops.requests",
    purpose="stop it after everything that its sources have now is processed",
)
PROBE: Final = Command(
    module="godwit.ops.probe",
    purpose="whether a query is alive or ready, for probes of Kubernetes and others",
)
UI: Final = Command(
    module="godwit.ops.ui",
    purpose="a running or past stream as a page in the browser",
    needs="rich",
    install=_CLI,
)
REPORT: Final = Command(
    module="godwit.ops.ui",
    purpose="a run as one HTML file to send",
    needs="rich",
    install=_CLI,
)
WHY: Final = Command(
    module="godwit.ops.why",
    purpose="the controller's last decisions, with their reasons",
)
ADVISE: Final = Command(
    module="godwit.ops.advise.command",
    purpose="the time that a Spark streaming run lost to unbalanced state, from its event log",
    needs="rich",
    install=_CLI,
)
ADOPT: Final = Command(
    module="godwit.adopt.command",
    purpose="the checkpoint of a stopped Spark query, and how to continue the query in Godwit",
    needs="pyspark",
    install="pyspark",
)

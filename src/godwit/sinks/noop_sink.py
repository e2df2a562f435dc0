"""Results nowhere: for measuring the rest."""

from __future__ import annotations

from godwit.sinks.sink import EpochOutput, Sink, SinkContext

__all__ = ["NoopSink"]


class NoopSink(Sink):
    """Throws all rows away; lanes do not even stage them."""

    @property
    def wants_rows(self) -> bool:
        """False: nothing is staged."""
        return False

    def open(self, context: SinkContext) -> None:
        """Accept anything."""

    def deliver(self, output: EpochOutput) -> None:
        """Do nothing."""

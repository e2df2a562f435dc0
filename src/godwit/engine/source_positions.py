"""Positions of Godwit's own sources: how far a query has read, and the rows of its next epoch.

The commit record of an epoch has the position of every source after it, and is the only log: a
start opens each source at the position of the last record, an epoch reads from there to the end
that the source gives, and its record has the new position.  A crash before the commit leaves the
old position, and the rows are read again.

A position applies only to a source of the same data (`Source.identity`), which also identifies a
renamed source.  A new source begins at its start; the position of a source that left the flow stays
in the records, so that it can return.

Independent of Spark: the driving thread calls `SourcePositions`, one thread at a time.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

import msgspec

from godwit.checkpoint.framing import plain_problems
from godwit.checkpoint.records import ANY_IDENTITY, PLAYED, POSITIONS, BatchRef
from godwit.engine.cluster import SourceBatch
from godwit.engine.lane.source_side import NumberedSplit, source_error
from godwit.model.errors import CheckpointMismatchError, GodwitError, SourceError
from godwit.model.naming import error_line, type_name
from godwit.plan.feedback import FeedbackSource
from godwit.sources.source import Lag, Split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from godwit.checkpoint.commit_log import CommitLog
    from godwit.sources.source import Position, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSources:
    """Sources in the last commit record, by their present names."""

    # positions, identities: of every source ever read, also of removed ones
    positions: Mapping[str, Position] = field(default_factory=dict)
    identities: Mapping[str, str] = field(default_factory=dict)
    number: int = -1  # of the last batch
    played: bool = False  # some rows were given by a test: see `PLAYED`
    renamed: Mapping[str, str] = field(default_factory=dict)  # former name → present name
    changes: tuple[str, ...] = ()  # changes of sources, as text


def recorded_sources(
    last: BatchRef | None,
    sources: Mapping[str, Source],
    uri: str,
) -> RecordedSources:
    """Return the positions of a flow's own sources (not DataFrames) in the last commit record.

    `last`: last committed batch. `uri`: checkpoint, for errors. Raises `CheckpointMismatchError`,
    which names the source, if one reads other data than before.
    """
    if last is None:
        return RecordedSources()
    identities = {name: source.identity for name, source in sources.items()}
    renamed: dict[str, str] = {}
    for name, identity in identities.items():
        if last.identities.get(name) in (identity, ANY_IDENTITY):
            continue
        for old, old_identity in last.identities.items():
            if (
                old_identity == identity
                and identities.get(old) != old_identity
                and old not in renamed
            ):
                renamed[old] = name
                break
    names = {old: renamed.get(old, old) for old in last.identities}
    for name, identity in identities.items():
        recorded = last.identities.get(name, identity)
        if recorded not in (identity, ANY_IDENTITY) and name not in renamed:
            raise CheckpointMismatchError(
                f"Source {name!r} reads {identity}, and the position in the checkpoint {uri!r} is "
                f"of a source that reads {recorded}.",
                remedy="Let it read the same data as before; a source of other data needs another "
                "name, and is read from its start. If it is the same data in another place, and "
                "its positions are valid there too, declare so: godwit checkpoint keep-offsets "
                f"PATH {name}.",
                source=name,
                uri=uri,
            )
    known_names = set(names.values())
    changes = [f"source {old!r} is {new!r} now" for old, new in sorted(renamed.items())]
    if last.identities:
        changes += [
            f"source {name!r} is new and is read from its start"
            for name in identities
            if name not in known_names
        ]
    changes += [
        f"source {name!r} is gone; its position stays in the checkpoint"
        for old, name in names.items()
        if name not in identities and old not in renamed
    ]
    return RecordedSources(
        positions={names[old]: position for old, position in last.positions.items()},
        identities={names[old]: identity for old, identity in last.identities.items()},
        number=last.number,
        played=last.digest == PLAYED,
        renamed=renamed,
        changes=tuple(changes),
    )


# id of a source → its owner; owners that are gone without closing it do not count
_OPENED: Final[WeakValueDictionary[int, SourcePositions]] = WeakValueDictionary()
_OPENING: Final = threading.Lock()
_MAX_REPORTED: Final = 100
_MAX_MESSAGES: Final = 1000  # remembered, to report each once
_logger = logging.getLogger("godwit")


class SourcePositions:
    """Own sources of one run: opening at positions, planning of rows, notification of commits.

    Loops are among them (`godwit.plan.feedback`). Every batch reads all rows that wait in loops;
    batches of loops alone run until the loops are empty, or up to their maximum of rounds.

    Exceptions of a source become a `SourceError` with its name; Godwit's errors are raised
    unchanged.
    """

    # called with the failed call and the error if the query continues, once for each error; writes
    # to the log by default, and is replaced where events can be announced
    on_failure: Callable[[str, str], None] = staticmethod(
        lambda what, error: _logger.warning("%s failed with %s", what, error)
    )
    # called with a loop that pauses, its rounds, and the rows that wait in it; as above
    on_pause: Callable[[str, int, int], None] = staticmethod(
        lambda loop, rounds, rows: _logger.warning(
            "The loop %s pauses after %d rounds; %d rows wait in it", loop, rounds, rows
        )
    )
    # called with a source and a message of it; until it is set, sources keep their messages
    on_report: Callable[[str, str], None] | None = None

    def __init__(
        self,
        sources: Mapping[str, Source],
        recorded: RecordedSources,
        *,
        log: CommitLog | None = None,  # the checkpoint, with rows that wait in loops
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sources, self._now_s = sources, now_s
        self._call: tuple[str, float] | None = None  # running call of a source: text, start
        self._reported: set[tuple[str, str]] = set()
        self._messages: deque[tuple[str, str]] = deque(maxlen=_MAX_MESSAGES)
        # loop → consecutive batches with only rows of loops
        self._rounds = {
            name: 0 for name, source in sources.items() if isinstance(source, FeedbackSource)
        }
        self._pauses = False  # loops pause, and it was announced
        if log is not None:
            self.read_loops_of(log)
        self._number, self._played = recorded.number, recorded.played
        self._opened: dict[str, Source] = {}
        # position of every source after the last committed batch, also of removed ones
        self._positions: dict[str, Position] = dict(recorded.positions)
        self._identities = {
            **recorded.identities,
            **{name: source.identity for name, source in sources.items()},
        }
        for name in self._rounds:
            self._positions.setdefault(name, sources[name].start())
        self._until: dict[str, Position] = {}
        # sources with a recorded position, or without need for one
        self._committed = {*recorded.positions, *self._rounds}

    def read_loops_of(self, log: CommitLog) -> None:
        """Read the rows waiting in feedback loops from this checkpoint log, from now on."""
        for source in self.sources.values():
            if isinstance(source, FeedbackSource):
                source.bind(log)

    def open(self, names: Iterable[str] | None = None) -> None:
        """Open all sources, or only `names`, at their positions; if one fails, close all."""
        try:
            for name in self.sources if names is None else names:
                if name not in self._opened:
                    self._open(name, self.sources[name])
        except BaseException:
            self.close()
            raise

    @contextmanager
    def _calling(self, name: str, method: str, failure: str) -> Iterator[None]:
        """Context of a call of a source; its exceptions become a `SourceError` with `failure`."""
        try:
            with self._noting_call(name, method):
                yield
        except GodwitError:
            raise
        except (Exception, SystemExit) as error:
            raise source_error(name, failure, error) from error

    @contextmanager
    def _noting_call(self, name: str, method: str) -> Iterator[None]:
        """Context in which `unanswered` can name a call of a source that does not return."""
        self._call = (f"source {name!r} has not returned from {method}", self._now_s())
        try:
            yield
        finally:
            self._call = None
            if (on_report := self.on_report) is not None:
                for message in self.sources[name].take_reports():
                    if (name, message) not in self._messages:
                        self._messages.append((name, message))
                        on_report(name, message)

    def unanswered(self, since_s: float) -> str | None:
        """Return, as text, the call of a source that has lasted `since_s` seconds, or ``None``.

        May be called by any thread.
        """
        if (call := self._call) is None or (took_s := self._now_s() - call[1]) < since_s:
            return None
        return f"{call[0]} for {took_s:.0f} s"

    def _open(self, name: str, source: Source) -> None:
        """Open a source at its recorded position; raise if another query uses the same object."""
        committed = name in self._committed
        self._until.pop(name, None)
        with _OPENING:
            if _OPENED.get(id(source), self) is not self:
                raise SourceError(
                    f"Source {name!r} is the same object as a source of another running query.",
                    remedy="Create a source for each query, or stop the other query first.",
                    source=name,
                )
            _OPENED[id(source)] = self
        self._opened[name] = source  # closed also if opening fails
        with self._calling(name, "open", "could not be opened"):
            source.open(self._position(name) if committed else None)
        if committed:
            self._report_commit(name)
            return
        with self._calling(name, "start", "could not say where it starts"):
            self._positions[name] = _normalised_position(name, source.start())

    def close(self) -> None:
        """Close the open sources; an error of one is reported, and the others are closed."""
        opened, self._opened = self._opened, {}
        for name, source in opened.items():
            try:
                with self._noting_call(name, "close"):
                    source.close()
            except Exception as error:  # noqa: BLE001  a user's source may raise anything
                self._report_failure(f"closing source {name!r}", error_line(error))
            finally:
                with _OPENING:
                    _OPENED.pop(id(source), None)

    @property
    def positions(self) -> dict[str, Position]:
        """Position of each open source after the last committed batch."""
        return {name: self._position(name) for name in self._opened}

    def _position(self, name: str) -> Position:
        """Return a copy of a source's position after the last committed batch."""
        return copy.deepcopy(self._positions[name])

    def fix_ends(self, stated: Mapping[str, Position] | None = None) -> None:
        """Let the input end at the present ends of the sources (trigger ``availableNow``).

        `stated`: source → position at which it ends instead.
        """
        self._until = {**self.ends(), **copy.deepcopy(dict(stated or {}))}

    def problem_of_ends(self, stated: Mapping[str, Position]) -> str:
        """Return why sources cannot end at the stated positions; empty if they can."""
        for name, end in stated.items():
            source = self._opened.get(name)
            if source is None or name in self._rounds:
                known = ", ".join(n for n in self._opened if n not in self._rounds)
                return f"no source {name!r} can be given an end, only: {known or 'none'}"
            try:
                self._checked_end(name, source.latest(self._position(name), until=end))
            except Exception as error:  # noqa: BLE001  a source may raise anything on a wrong value
                return f"source {name!r} does not take {end!r} for an end: {error_line(error)}"
        return ""

    def ends(self) -> dict[str, Position]:
        """Return the present end of each open source, ignoring its limits."""
        ends = {}
        for name, source in self._opened.items():
            if name in self._rounds:
                continue  # it ends once the loop is empty
            with self._calling(name, "end", "could not say how far its rows reach"):
                end = source.end(self._position(name))
            ends[name] = self._checked_end(name, end)
        return ends

    def reached(self, ends: Mapping[str, Position]) -> bool:
        """Return true if all rows up to `ends` are committed, and loops are empty or pause."""
        if self._has_active_loop():
            return False
        for name, source in self._opened.items():
            if name not in ends:
                continue
            with self._calling(name, "latest", "could not say how far it may be read"):
                latest = source.latest(self._position(name), until=copy.deepcopy(ends[name]))
            if self._new_end(name, latest) is not None:
                return False
        return self._committed.issuperset(self._opened)

    def plan(
        self,
        parallelism: int,
        *,
        limits: Mapping[str, int] | None = None,
        everything: bool = False,
    ) -> SourceBatch[Any] | None:
        """Return the next batch of source rows; ``None`` if there are none.

        `parallelism`: approximate number of splits per source. `limits`: approximate maximum
        rows of each source. `everything`: ignore the sources' own limits. Planning
        again without a commit in between gives the same rows, or more. The first batch of a source
        may have no rows, since its first position must be committed.
        """
        ends, splits = self._plan_round(parallelism)
        has_active_loop = self._has_active_loop()
        final_ends = self.ends() if everything else {}
        for name, source in self._opened.items():
            if name in self._rounds:
                continue
            begin, until = self._position(name), copy.deepcopy(self._until.get(name))
            with self._calling(name, "latest", "could not say how far it may be read"):
                limit = None if limits is None else limits.get(name)
                end = (
                    final_ends[name]
                    if final_ends
                    else source.latest(begin, limit=limit, until=until)
                )
            end = self._new_end(name, end)
            if end is None:
                continue
            self._check_progress(name, source, end)
            ends[name] = end
            with self._calling(name, "splits", "could not be cut into splits"):
                begin = self._position(name)
                source_splits: object = source.splits(begin, copy.deepcopy(end), parallelism)
            splits += _numbered_splits(name, source_splits, first=len(splits))
        only_loops = ends.keys() <= self._rounds.keys()
        if only_loops and not has_active_loop and self._committed.issuperset(self._opened):
            return None
        return self._batch_up_to(ends, splits)

    def _new_end(self, name: str, end: object) -> Position | None:
        """Return the end that a source gave, as plain values; ``None`` if it equals its position.

        A position may be large and sources are polled often, so an unchanged one is not copied.
        """
        position = self._positions[name]
        with suppress(Exception):  # a user's value may raise anything; it is compared again below
            if end == position:
                return None
        moved = self._checked_end(name, end)
        return None if moved == position else moved

    def _checked_end(self, name: str, end: object) -> Position:
        """Return a source's end as plain values; raise if it is ``None`` once rows were read."""
        if end is None and (read := self._positions[name]) is not None:
            raise SourceError(
                f"Source {name!r} returned None instead of a position; the query has read it "
                f"to {_position_text(self.sources[name], read)}.",
                remedy="Let Source.latest and Source.end return a position: the given one if there "
                "are no more rows.",
                source=name,
            )
        return _normalised_position(name, end)

    def plan_loops_only(self, parallelism: int = 1) -> SourceBatch[Any]:
        """Return a batch that reads only the rows waiting in loops; other positions stay."""
        return self._batch_up_to(*self._plan_round(parallelism))

    def plan_next_round(self, parallelism: int, *, due: bool = False) -> SourceBatch[Any] | None:
        """Return a batch of the rows waiting in loops.

        ``None`` if there are none or the loops pause.

        `due`: an epoch runs anyway, so it reads waiting rows even if the loops pause.
        """
        ends, splits = self._plan_round(parallelism) if due or self._has_active_loop() else ({}, [])
        return self._batch_up_to(ends, splits) if ends else None

    def _plan_round(self, parallelism: int) -> tuple[dict[str, Position], list[NumberedSplit]]:
        """Return positions and splits (up to `parallelism` a loop) of rows that wait in loops."""
        ends: dict[str, Position] = {}
        splits: list[NumberedSplit] = []
        for name in self._rounds:
            source, begin = self.sources[name], self._positions[name]
            end = source.latest(begin)
            if end != begin:
                ends[name] = end
                cut = source.splits(begin, end, parallelism)
                splits += _numbered_splits(name, cut, first=len(splits))
        return ends, splits

    def _has_active_loop(self) -> bool:
        """Return true if rows wait in a loop that has not reached its maximum of rounds."""
        return any(
            rounds < self._feedback_source(name).max_rounds
            and self._feedback_source(name).waiting[1]
            for name, rounds in self._rounds.items()
        )

    def _feedback_source(self, name: str) -> FeedbackSource:
        """Return the source of a loop's rows."""
        source = self.sources[name]
        assert isinstance(source, FeedbackSource), "others have no rounds"
        return source

    def _check_progress(self, name: str, source: Source, end: Position) -> None:
        """Raise `SourceError` if an end is before the position: rows would be repeated."""
        read = self._position(name)
        with self._calling(name, "precedes", "could not compare two positions"):
            if not source.precedes(copy.deepcopy(end), copy.deepcopy(read)):
                return
        raise SourceError(
            f"Source {name!r} goes backwards: the query has read it to "
            f"{_position_text(source, read)}, but it now ends at {_position_text(source, end)}.",
            remedy="Nothing was read again. If its data were truncated or replaced, start with a "
            "new checkpoint, or give the source another name; in a source of your own, let "
            "Source.latest and Source.end return the position itself if there are no more rows.",
            source=name,
        )

    def with_test_rows(self, planned: SourceBatch[Any] | None = None) -> SourceBatch[Any]:
        """Return a batch that also counts as having rows given by a test.

        `planned`: the batch; ``None``: one that reads only the rows waiting in loops.
        """
        planned = self.plan_loops_only() if planned is None else planned
        return replace(planned, ref=msgspec.structs.replace(planned.ref, digest=PLAYED))

    def _batch_up_to(
        self, ends: Mapping[str, Position], splits: list[NumberedSplit]
    ) -> SourceBatch[Any]:
        """Return the batch that ends at these positions."""
        recorded = {**self._positions, **ends}
        ref = BatchRef(
            number=self._number + 1,
            digest=PLAYED if self._played else POSITIONS,
            positions=recorded,
            identities={name: self._identities[name] for name in recorded},
        )
        return SourceBatch(ref=ref, begins=self.positions, splits=tuple(splits))

    def committed(self, batch: BatchRef, *, others: bool = False) -> None:
        """Record that a batch is committed, and report it to the sources.

        `others`: it also had rows of other sources, such as DataFrames.
        """
        moved = {n for n, end in batch.positions.items() if end != self._positions.get(n)}
        before, self._number, self._played = self._positions, batch.number, batch.digest == PLAYED
        self._positions = dict(batch.positions)
        self._committed = set(batch.positions)
        for name in self._opened:
            if before.get(name) != self._positions[name]:
                self._report_commit(name)
        self._count_round(alone=not others and moved <= self._rounds.keys())

    def _count_round(self, *, alone: bool) -> None:
        """Count a round if a batch had only rows of loops (`alone`); announce that loops pause."""
        self._rounds = {
            name: num_rounds + 1 if alone else 0 for name, num_rounds in self._rounds.items()
        }
        pauses = alone and not self._has_active_loop()
        if pauses and not self._pauses:
            for name, rounds in self._rounds.items():
                rows = sum(ref.rows for ref in self._feedback_source(name).waiting[1])
                if rows:
                    self.on_pause(name, rounds, rows)
        self._pauses = pauses

    def _report_failure(self, what: str, error: str) -> None:
        """Report that a call of a source failed, once for each error; `what`: the call."""
        if (what, error) not in self._reported and len(self._reported) < _MAX_REPORTED:
            self._reported.add((what, error))
            self.on_failure(what, error)

    def _report_commit(self, name: str) -> None:
        """Call `Source.committed` with a source's committed position, if it changed."""
        try:
            with self._noting_call(name, "committed"):
                self._opened[name].committed(self._position(name))
        except Exception as error:  # noqa: BLE001  the epoch is committed already
            self._report_failure(f"telling source {name!r} of a commit", error_line(error))

    def lags(self) -> dict[str, Lag]:
        """Return source → lag behind the end of its data, for open sources; empty if it fails."""
        lags = {}
        for name, source in self._opened.items():
            try:
                with self._noting_call(name, "lag"):
                    lags[name] = source.lag(self._position(name))
            except Exception as error:  # noqa: BLE001  epochs do not need the figure
                self._report_failure(f"asking source {name!r} for its lag", error_line(error))
                lags[name] = Lag()
        return lags

    def described(self, positions: Mapping[str, Position]) -> dict[str, dict[str, Any]]:
        """Return positions of open sources as short values for users: source → figures by name."""
        descriptions: dict[str, dict[str, Any]] = {}
        for name, source in self._opened.items():
            if name in positions:
                try:
                    descriptions[name] = source.describe(copy.deepcopy(positions[name]))
                except Exception as error:  # noqa: BLE001  as of the lag
                    self._report_failure(f"describing source {name!r}", error_line(error))
                    descriptions[name] = {"position": positions[name]}
        return descriptions


def _normalised_position(name: str, position: object) -> Position:
    """Return a position as decoded from a commit record; raise if it cannot be encoded."""
    try:
        decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(position))
        problem = next(plain_problems("it", decoded), None)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        problem = error_line(error)
    if problem is None:
        return decoded
    raise SourceError(
        f"Source {name!r} returned a position that a commit record cannot store: {problem}.",
        remedy="Let positions be numbers of up to 64 bits, text, bytes, None, and lists and dicts "
        "of them, with text or numbers for keys.",
        source=name,
    )


def _position_text(source: Source, position: Position) -> str:
    """Return a source's position as text for errors."""
    if isinstance(position, int | float):
        return f"{position:,}"
    try:
        return str(source.describe(copy.deepcopy(position)))
    except Exception:  # noqa: BLE001  shown by its repr then
        return repr(position)


def _numbered_splits(name: str, splits: object, first: int) -> list[NumberedSplit]:
    """Return the splits of a source with numbers from `first` on; raise for other values."""
    if isinstance(splits, Sequence) and all(isinstance(split, Split) for split in splits):
        return [
            NumberedSplit(number=number, source=name, split=split)
            for number, split in enumerate(splits, first)
        ]
    raise SourceError(
        f"Source {name!r} returned a value of type {type_name(splits)} instead of a list "
        "of splits.",
        remedy="Let Source.splits return a list of godwit.sources.Split.",
        source=name,
    )

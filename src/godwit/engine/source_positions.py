"""Positions of Godwit's own sources: how far a query has read, and what its next epoch reads.

The commit record of an epoch has the position of every source after it, and is the only log there
is: a start opens each source at the position of the last record, an epoch reads from there up to
where the source says, and its record has the new position.  A crash in between leaves the old one,
and the rows are read again.

A position counts for a source that reads the same thing (`Source.identity`) alone.  A source with
another name is known again by that; one that is new in the flow begins where it says; that of one
that has left the flow stays in the records, so that it can come back.

No Spark is in here: whoever drives epochs asks `SourcePositions` for rows, one thread at a time.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

import msgspec

from godwit.checkpoint.framing import plain_problems
from godwit.checkpoint.records import ANY_IDENTITY, PLAYED, POSITIONS, BatchRef
from godwit.engine.lane.source_side import NumberedSplit, source_error
from godwit.model.errors import CheckpointMismatchError, GodwitError, SourceError
from godwit.model.naming import error_line, type_name
from godwit.sources.source import Lag, Split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from godwit.sources.source import Position, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSources:
    """Sources in the last commit record, by the names that they have today."""

    # position, identity: of every source that was ever read, also of those that are gone
    positions: Mapping[str, Position] = field(default_factory=dict)
    identities: Mapping[str, str] = field(default_factory=dict)
    number: int = -1  # of the last batch
    played: bool = False  # some rows came from no source: see `PLAYED`
    renamed: Mapping[str, str] = field(default_factory=dict)  # former name → name of today
    changes: tuple[str, ...] = ()  # what became of sources, in words


def recorded_sources(
    last: BatchRef | None,  # the last batch that is committed
    sources: Mapping[str, Source],  # of the flow, by name
    uri: str,  # of the checkpoint
) -> RecordedSources:
    """Find the recorded positions of a flow's own sources.

    Raises `CheckpointMismatchError`, which names the source, if one reads something else than it
    did.
    """
    if last is None:
        return RecordedSources()
    today = {name: source.identity for name, source in sources.items()}
    renamed: dict[str, str] = {}
    for name, identity in today.items():
        if last.identities.get(name) in (identity, ANY_IDENTITY):
            continue
        for old, reads in last.identities.items():
            if reads == identity and today.get(old) != reads and old not in renamed:
                renamed[old] = name
                break
    names = {old: renamed.get(old, old) for old in last.identities}
    for name, identity in today.items():
        recorded = last.identities.get(name, identity)
        if recorded not in (identity, ANY_IDENTITY) and name not in renamed:
            raise CheckpointMismatchError(
                f"Source {name!r} reads {identity}, and the position in the checkpoint {uri!r} is "
                f"of a source that reads {recorded}.",
                remedy="Let it read what it read before; a source that is to read something else "
                "from its beginning needs another name. If it is the same data in another place, "
                "and what was read counts there as well, say so: godwit checkpoint keep-offsets "
                f"PATH {name}.",
                source=name,
                uri=uri,
            )
    known = set(names.values())
    changes = [f"source {old!r} is {new!r} now" for old, new in sorted(renamed.items())]
    if last.identities:
        changes += [
            f"source {name!r} is new and is read from its start"
            for name in today
            if name not in known
        ]
    changes += [
        f"source {name!r} is gone; its position stays in the checkpoint"
        for old, name in names.items()
        if name not in today and old not in renamed
    ]
    return RecordedSources(
        positions={names[old]: position for old, position in last.positions.items()},
        identities={names[old]: identity for old, identity in last.identities.items()},
        number=last.number,
        played=last.digest == PLAYED,
        renamed=renamed,
        changes=tuple(changes),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRows:
    """Rows of own sources that an epoch is to read."""

    ref: BatchRef  # what its commit record says: positions after it
    begins: Mapping[str, Position]  # position of each source before it
    splits: tuple[NumberedSplit, ...]  # older rows of a source before newer ones

    @property
    def rows(self) -> int | None:
        """Number of rows; ``None`` if that is not known before they are read."""
        return _sum([numbered.split.rows for numbered in self.splits])

    def rows_of(self, source: str) -> int | None:
        """Return the number of rows of one source; ``None`` if that is not known yet."""
        return _sum([n.split.rows for n in self.splits if n.source == source])

    @property
    def size_bytes(self) -> int | None:
        """Size in bytes of the rows where they are stored, about; ``None`` if not known."""
        return _sum([numbered.split.size_bytes for numbered in self.splits])


def _sum(numbers: list[int | None]) -> int | None:
    """Sum of numbers; ``None`` if one of them is not known."""
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


# id of a source → who has it open. Whoever is gone without closing it does not count.
_OPENED: Final[WeakValueDictionary[int, SourcePositions]] = WeakValueDictionary()
_OPENING: Final = threading.Lock()


class SourcePositions:
    """Own sources of one run: opened at their positions, asked for rows, told of commits.

    An error of a source is a `SourceError` with its name; what a source raises of Godwit's own
    errors is raised as it is.
    """

    def __init__(
        self,
        sources: Mapping[str, Source],
        recorded: RecordedSources,
        *,
        # what failed, and the error, where the query goes on all the same
        on_failure: Callable[[str, str], None] = lambda _what, _error: None,
    ) -> None:
        self.sources = sources
        self._on_failure = on_failure
        self._number, self._played = recorded.number, recorded.played
        self._opened: dict[str, Source] = {}
        # position of every source after the last committed batch, also of those that are gone
        self._positions: dict[str, Position] = dict(recorded.positions)
        self._identities = {
            **recorded.identities,
            **{name: source.identity for name, source in sources.items()},
        }
        self._until: dict[str, Position] = {}
        self._committed = set(recorded.positions)  # sources whose position a record has

    def open(self, names: Iterable[str] | None = None) -> None:
        """Open sources at their positions: all of them, or these; if one fails, close all."""
        try:
            for name in self.sources if names is None else names:
                if name not in self._opened:
                    self._open(name, self.sources[name])
        except BaseException:
            self.close()
            raise

    def _open(self, name: str, source: Source) -> None:
        """Open a source at its position of the last record."""
        committed = name in self._committed
        self._until.pop(name, None)
        with _OPENING:
            if _OPENED.get(id(source), self) is not self:
                raise SourceError(
                    f"Source {name!r} is the same object as a source of another query that runs.",
                    remedy="Make a source for each query, or stop the other one before.",
                    source=name,
                )
            _OPENED[id(source)] = self
        self._opened[name] = source  # closed also if opening it fails half-way
        with _errors_of(name, "could not be opened"):
            source.open(self._position(name) if committed else None)
        if committed:
            self._note(name)
            return
        with _errors_of(name, "could not say where it starts"):
            self._positions[name] = _plain(name, source.start())

    def close(self) -> None:
        """Close the sources that are open; a failure of one is reported, and harms no other."""
        opened, self._opened = self._opened, {}
        for name, source in opened.items():
            try:
                source.close()
            except Exception as error:  # noqa: BLE001  whatever a user's source raises
                self._on_failure(f"closing source {name!r}", error_line(error))
            finally:
                with _OPENING:
                    _OPENED.pop(id(source), None)

    @property
    def positions(self) -> dict[str, Position]:
        """Position of each open source after the last committed batch."""
        return {name: self._position(name) for name in self._opened}

    def _position(self, name: str) -> Position:
        """Return a copy of a position: whatever is done to it, ours stays."""
        return copy.deepcopy(self._positions[name])

    def end_with_what_is_there(self) -> None:
        """Read no further than what there is now."""
        self._until = self.ends()

    def ends(self) -> dict[str, Position]:
        """Return how far the rows of each open source reach now, whatever limits it has."""
        ends = {}
        for name, source in self._opened.items():
            with _errors_of(name, "could not say how far its rows reach"):
                ends[name] = _plain(name, source.end(self._position(name)))
        return ends

    def reached(self, ends: Mapping[str, Position]) -> bool:
        """Return whether everything up to positions that `ends` has returned is committed."""
        for name, source in self._opened.items():
            with _errors_of(name, "could not say how far it may be read"):
                latest = source.latest(self._position(name), until=copy.deepcopy(ends[name]))
            if self._moves(name, latest) is not None:
                return False
        return self._committed.issuperset(self._opened)

    def plan(
        self, parallelism: int, *, limit: int | None = None, everything: bool = False
    ) -> PlannedRows | None:
        """Plan the rows of the next batch; ``None`` if there are none.

        Every source is cut into about `parallelism` splits. `limit` bounds the rows of each source,
        as near as it can tell; `everything` lifts the limits that sources have. Planning anew
        without a commit in between plans the same rows, or more of them. The first batch of a
        source may have no rows: where it starts, such as behind the newest row that there was, has
        to be committed before it can be gone on from.
        """
        ends: dict[str, Position] = {}
        splits: list[NumberedSplit] = []
        whole = self.ends() if everything else {}
        for name, source in self._opened.items():
            begin, until = self._position(name), copy.deepcopy(self._until.get(name))
            with _errors_of(name, "could not say how far it may be read"):
                end = whole[name] if whole else source.latest(begin, limit=limit, until=until)
            end = self._moves(name, end)
            if end is None:
                continue
            self._insist_on_progress(name, source, end)
            ends[name] = end
            with _errors_of(name, "could not be cut into splits"):
                begin = self._position(name)
                found: object = source.splits(begin, copy.deepcopy(end), parallelism)
            splits += _split_list(name, found, first=len(splits))
        if not ends and self._committed.issuperset(self._opened):
            return None
        return self._planned(ends, splits)

    def _moves(self, name: str, end: object) -> Position | None:
        """Return the end that a source gave, as a record has it; ``None``: where it stands now.

        A position may be large, and sources are asked all the time: what stands is not copied.
        """
        position = self._positions[name]
        with suppress(Exception):  # whatever a user's value raises; it is compared again below
            if end == position:
                return None
        moved = _plain(name, end)
        return None if moved == position else moved

    def standing(self) -> PlannedRows:
        """Plan a batch that reads nothing of these sources: their positions stay."""
        return self._planned({}, [])

    def _insist_on_progress(self, name: str, source: Source, end: Position) -> None:
        """Refuse an end behind what was read: its rows would be processed twice."""
        read = self._position(name)
        with _errors_of(name, "could not compare two positions"):
            if not source.precedes(copy.deepcopy(end), copy.deepcopy(read)):
                return
        raise SourceError(
            f"Source {name!r} goes backwards: the query has read up to {_shown(source, read)}, "
            f"and it may be read up to {_shown(source, end)} now.",
            remedy="Nothing was read again. If what it reads was cut off or made anew, start with "
            "a new checkpoint, or give the source another name; in a source of your own, let "
            "Source.latest and Source.end return the position itself where there are no more rows.",
            source=name,
        )

    def played(self, planned: PlannedRows | None = None) -> PlannedRows:
        """Return a batch of rows that come from no source, beside those that were planned."""
        planned = self.standing() if planned is None else planned
        return replace(planned, ref=msgspec.structs.replace(planned.ref, digest=PLAYED))

    def _planned(self, ends: Mapping[str, Position], splits: list[NumberedSplit]) -> PlannedRows:
        """Make the plan of a batch that ends at these positions."""
        recorded = {**self._positions, **ends}
        ref = BatchRef(
            number=self._number + 1,
            digest=PLAYED if self._played else POSITIONS,
            positions=recorded,
            identities={name: self._identities[name] for name in recorded},
        )
        return PlannedRows(ref=ref, begins=self.positions, splits=tuple(splits))

    def committed(self, batch: BatchRef) -> None:
        """Record that a batch is committed, and report it to the sources."""
        before, self._number, self._played = self._positions, batch.number, batch.digest == PLAYED
        self._positions = dict(batch.positions)
        self._committed = set(batch.positions)
        for name in self._opened:
            if before.get(name) != self._positions[name]:
                self._note(name)

    def _note(self, name: str) -> None:
        """Report a source's committed position to it, for others to see, such as Kafka's groups."""
        try:
            self._opened[name].committed(self._position(name))
        except Exception as error:  # noqa: BLE001  the epoch is committed, whatever it raises
            self._on_failure(f"telling source {name!r} of a commit", error_line(error))

    def lags(self) -> dict[str, Lag]:
        """Return how far the query is behind each open source; unknown where one cannot tell."""
        lags = {}
        for name, source in self._opened.items():
            try:
                lags[name] = source.lag(self._position(name))
            except Exception as error:  # noqa: BLE001  a figure, which no epoch needs
                self._on_failure(f"asking source {name!r} for its lag", error_line(error))
                lags[name] = Lag()
        return lags

    def described(self, positions: Mapping[str, Position]) -> dict[str, dict[str, Any]]:
        """Describe positions for people, those of sources that are open."""
        told: dict[str, dict[str, Any]] = {}
        for name, source in self._opened.items():
            if name in positions:
                try:
                    told[name] = source.describe(copy.deepcopy(positions[name]))
                except Exception as error:  # noqa: BLE001  as of the lag
                    self._on_failure(f"describing source {name!r}", error_line(error))
                    told[name] = {"position": positions[name]}
        return told


@contextmanager
def _errors_of(name: str, what: str) -> Iterator[None]:
    """Turn what a source raises into an error with its name."""
    try:
        yield
    except GodwitError:
        raise
    except Exception as error:
        raise source_error(name, what, error) from error


def _plain(name: str, position: object) -> Position:
    """Return a position as a commit record gives it back; refuse one that it cannot hold."""
    try:
        decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(position))
        problem = next(plain_problems("it", decoded), None)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        problem = error_line(error)
    if problem is None:
        return decoded
    raise SourceError(
        f"Source {name!r} gave a position that a commit record cannot hold: {problem}.",
        remedy="Let positions be numbers of up to 64 bits, text, bytes, None, and lists and dicts "
        "of them, with text or numbers for keys.",
        source=name,
    )


def _shown(source: Source, position: Position) -> str:
    """Describe a position in an error."""
    if isinstance(position, int | float):
        return f"{position:,}"
    try:
        return str(source.describe(copy.deepcopy(position)))
    except Exception:  # noqa: BLE001  it is shown as it is then
        return repr(position)


def _split_list(name: str, splits: object, first: int) -> list[NumberedSplit]:
    """Return the splits of a source, numbered, or refuse what are none."""
    if isinstance(splits, Sequence) and all(isinstance(split, Split) for split in splits):
        return [
            NumberedSplit(number=number, source=name, split=split)
            for number, split in enumerate(splits, first)
        ]
    raise SourceError(
        f"Source {name!r} was to be cut into splits, and gave a value of type {type_name(splits)} "
        "that is no list of them.",
        remedy="Let Source.splits return a list of godwit.sources.Split.",
        source=name,
    )

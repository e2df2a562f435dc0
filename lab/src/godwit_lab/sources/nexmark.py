"""Bids, auctions and persons of the NEXMark benchmark: `gw.sources.nexmark`.

Events are numbered. Of every 50, the first is a person, the next three are auctions, and 46 are
bids; so the n-th bid, say, is an event whose number is known, and so are the auctions and persons
that there were before it. Half of all bids go to hot auctions, three quarters come from hot
bidders, three quarters of all auctions are sold by hot sellers. The proportions are those of the
generator of Apache Beam (https://beam.apache.org/documentation/sdks/java/testing/nexmark/), after
Tucker et al., "NEXMark - A Benchmark for Queries over Data Streams", 2002. Values are drawn by
counter (`godwit.sources.simple_sources`), so they are not, number by number, those of Beam.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from godwit.model.errors import SourceError
from godwit.model.frames import user_call
from godwit.model.naming import did_you_mean, is_one_of, listing
from godwit.sources.simple_sources import GeneratedSource, draw, event_times_of, fractions

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]

NexmarkKind: TypeAlias = Literal["bids", "auctions", "persons"]

_INSTANT: Final = pa.timestamp("us", tz="UTC")
SCHEMAS: Final[dict[str, pa.Schema]] = {
    "bids": pa.schema(
        {
            "auction": pa.int64(),
            "bidder": pa.int64(),
            "price": pa.int64(),
            "channel": pa.string(),
            "url": pa.string(),
            "date_time": _INSTANT,
            "extra": pa.string(),
        }
    ),
    "auctions": pa.schema(
        {
            "id": pa.int64(),
            "item_name": pa.string(),
            "description": pa.string(),
            "initial_bid": pa.int64(),
            "reserve": pa.int64(),
            "date_time": _INSTANT,
            "expires": _INSTANT,
            "seller": pa.int64(),
            "category": pa.int64(),
            "extra": pa.string(),
        }
    ),
    "persons": pa.schema(
        {
            "id": pa.int64(),
            "name": pa.string(),
            "email_address": pa.string(),
            "credit_card": pa.string(),
            "city": pa.string(),
            "state": pa.string(),
            "date_time": _INSTANT,
            "extra": pa.string(),
        }
    ),
}

_CYCLE: Final = 50
_FIRST_OF: Final = {"persons": 0, "auctions": 1, "bids": 4}  # place in the cycle
_SHARE_OF: Final = {"persons": 1, "auctions": 3, "bids": 46}
_FIRST_ID: Final = 1000
_FIRST_CATEGORY: Final = 10
_CATEGORIES: Final = 5
_HOT_STRIDE: Final = 100  # one id in this number is hot
_AUCTIONS_IN_FLIGHT: Final = 100
_ACTIVE_PERSONS: Final = 1000
_ID_LEAD: Final = 10  # ids that do not exist yet are drawn too, as in the definition
_HOT_AUCTIONS, _HOT_BIDDERS, _HOT_SELLERS, _HOT_CHANNELS = 2, 4, 4, 2  # all but one in this number
_CHANNELS: Final = 10_000
_EXTRA: Final = {"bids": 32, "auctions": 250, "persons": 80}  # mean bytes, for usual row sizes

_HOT_NAMES: Final = ("Google", "Facebook", "Baidu", "Apple")
_FIRST_NAMES: Final = (
    *("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter"),
    "Walter",
)
_LAST_NAMES: Final = (
    *("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"),
)
_STATES: Final = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES: Final = (
    *("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond"),
    *("Seattle", "Kent", "Cheyenne"),
)


class NexmarkSource(GeneratedSource):
    """Rows of one kind; sources of one seed, rate and start make one auction house."""

    def __init__(self, kind: str, *, events_per_s: float, paced: bool, **options: Any) -> None:
        if not is_one_of(kind, SCHEMAS):
            raise SourceError(
                f"NEXMark has no {kind!r}.",
                remedy=f"{did_you_mean(str(kind), list(SCHEMAS))}There are {listing(SCHEMAS)}.",
            )
        share = _SHARE_OF[kind] / _CYCLE
        super().__init__(rows_per_s=float(events_per_s) * share, paced=paced, **options)
        self._kind, self._events_per_s = kind, float(events_per_s)
        self.arrival_time = "date_time" if paced else None

    @property
    def schema(self) -> pa.Schema:
        return SCHEMAS[self._kind]

    @property
    def identity(self) -> str:
        """Kind and options that determine the rows, as text."""
        options = self.options().partition(", ")[2]
        return f"nexmark({self._kind}, events_per_second={self._events_per_s:g}, {options})"

    def _num_within(self, passed_us: int) -> int:
        """Return the number of rows of this kind due `passed_us` microseconds after the start."""
        events = int(passed_us * self._events_per_s / 1e6) + 1
        share = _SHARE_OF[self._kind]
        place = min(max(events % _CYCLE - _FIRST_OF[self._kind], 0), share)
        return events // _CYCLE * share + place

    def event_time_us(self, number: int, start_us: int) -> int:
        """Return the event time of row `number` of this kind, in microseconds of Unix time."""
        event = int(_event_of(np.array([number], np.int64), self._kind)[0])
        return start_us + int(event * 1e6 / self._events_per_s)

    def generate(
        self, numbers: Numbers, start_us: int, columns: Sequence[str]
    ) -> dict[str, pa.Array]:
        """Return these columns of the rows of this kind with these numbers."""
        events = _Events(
            _event_of(numbers, self._kind), self._kind, self._seed, start_us, self._events_per_s
        )
        return {name: _COLUMNS[self._kind, name](events) for name in columns}


def _event_of(numbers: Numbers, kind: str) -> Numbers:
    """Return the numbers, among all events, of the given rows of a kind such as ``"bids"``."""
    share = _SHARE_OF[kind]
    return numbers // share * _CYCLE + _FIRST_OF[kind] + numbers % share


class _Events:
    """Events of one kind, and what their columns are drawn from."""

    def __init__(
        self, events: Numbers, kind: str, seed: int, start_us: int, events_per_s: float
    ) -> None:
        self.events, self.kind, self._seed = events, kind, seed
        self._start_us, self._events_per_s = start_us, events_per_s

    def draw_word(self, column: str) -> npt.NDArray[np.uint64]:
        """Return a random 64-bit word for each event; `column`: seeds the draw."""
        return draw(self.events, self._seed, f"{self.kind}.{column}")

    def draw_below(self, column: str, limit: Numbers | int) -> Numbers:
        """Return a random integer from 0 to below a limit for each event.

        `column`: seeds the draw.
        """
        return (self.draw_word(column) % np.asarray(limit, np.uint64)).astype(np.int64)

    def event_times(self, after: Numbers | int = 0) -> pa.Array:
        """Return the event time of each event, or that of the event `after` numbers later."""
        return event_times_of(self.events + after, self._start_us, self._events_per_s)

    def last_person(self) -> Numbers:
        """Return, for each event, the number of the last person before it, counted from 0."""
        return self.events // _CYCLE

    def last_auction(self) -> Numbers:
        """Return, for each event, the number of the last auction before it; -1 if there is none."""
        return self.events // _CYCLE * 3 + np.clip(self.events % _CYCLE - 1, -1, 2)

    def draw_person(self, column: str, hot: int) -> Numbers:
        """Return a person for each event: mostly a hot one, else any active one.

        `column`: seeds the draw, and tells bidders from sellers. `hot`: share of hot ones is ``1 -
        1 / hot``.
        """
        last = self.last_person()
        active = np.minimum(last + 1, _ACTIVE_PERSONS)
        any_of = last + 1 - active + self.draw_below(f"{column}.any", active + _ID_LEAD)
        is_hot = self.draw_below(f"{column}.hot", hot) > 0
        is_bidder = column == "bidder"
        return _FIRST_ID + np.where(is_hot, last // _HOT_STRIDE * _HOT_STRIDE + is_bidder, any_of)

    def draw_auction(self) -> Numbers:
        """Draw for each bid an auction: the hot one, or any open one."""
        last = self.last_auction()
        first = np.maximum(last - _AUCTIONS_IN_FLIGHT, 0)
        any_of = first + self.draw_below("auction.any", last - first + 1 + _ID_LEAD)
        is_hot = self.draw_below("auction.hot", _HOT_AUCTIONS) > 0
        return _FIRST_ID + np.where(is_hot, last // _HOT_STRIDE * _HOT_STRIDE, any_of)

    def draw_price(self, column: str) -> Numbers:
        """Return a price for each event, in cents, log-uniform from $1 to $1M.

        `column`: seeds the draw.
        """
        exponent = fractions(self.draw_word(column)) * 6.0
        return np.rint(10.0**exponent * 100.0).astype(np.int64)

    def draw_expiry(self) -> pa.Array:
        """Draw for each auction the time when it ends."""
        horizon = _AUCTIONS_IN_FLIGHT * _CYCLE // 3
        horizon_ms = max(1, int(2 * horizon * 1e3 / self._events_per_s))
        length_us = (1 + self.draw_below("expires", horizon_ms)) * 1000
        return pa.array(self.event_times().cast(pa.int64()).to_numpy() + length_us).cast(_INSTANT)

    def draw_text(self, column: str, least: int, most: int) -> pa.Array:
        """Return a random lower-case text of `least` to `most` letters for each event.

        `column`: seeds the draw.
        """
        count = len(self.events)
        lengths = least + self.draw_below(f"{column}.length", most - least + 1)
        drawn = [self.draw_word(f"{column}.{part}") for part in range(-(-most // 8))]
        letters = np.stack(drawn, axis=1).view(np.uint8).reshape(count, -1) % 26 + ord("a")
        within = np.arange(letters.shape[1]) < lengths[:, None]
        return _cut_text(letters[within], lengths)

    def draw_filler(self) -> pa.Array:
        """Return filler text for each event, which brings a row to its usual size."""
        mean = _EXTRA[self.kind]
        return self.draw_text("extra", mean - mean // 5, mean + mean // 5)

    def draw_name(self, column: str, names: tuple[str, ...]) -> pa.Array:
        """Return one of `names` for each event; `column`: seeds the draw."""
        return pa.array(names).take(pa.array(self.draw_below(column, len(names))))

    def draw_channels(self) -> tuple[Numbers, Numbers]:
        """Return for each bid the number of a hot channel (-1: none), and of another channel."""
        hot = self.draw_below("channel.which", len(_HOT_NAMES))
        is_hot = self.draw_below("channel.hot", _HOT_CHANNELS) > 0
        return np.where(is_hot, hot, -1), self.draw_below("channel.any", _CHANNELS)

    def channel_name(self) -> pa.Array:
        """Return for each bid the name of its channel."""
        hot, other = self.draw_channels()
        others = _concatenated("channel-", pa.array(other).cast(pa.string()))
        names = pa.array(_HOT_NAMES).take(pa.array(np.maximum(hot, 0)))
        return pc.if_else(pa.array(hot >= 0), names, others)

    def url(self) -> pa.Array:
        """Return for each bid the URL of its channel, which numbers a channel that is not hot."""
        hot, other = self.draw_channels()
        paths = pa.array(np.where(hot >= 0, hot, len(_HOT_NAMES) + other)).cast(pa.string())
        base = _concatenated("https://www.nexmark.com/item.htm?query=", paths)
        others = _concatenated(base, "&channel_id=", pa.array(other).cast(pa.string()))
        return pc.if_else(pa.array(hot >= 0), base, others)

    def credit_card(self) -> pa.Array:
        """Draw for each person a credit card number: four groups of four digits."""
        parts = [
            pa.array(1000 + self.draw_below(f"card.{n}", 9000)).cast(pa.string()) for n in range(4)
        ]
        return pc.binary_join_element_wise(*parts, " ")


def _cut_text(letters: npt.NDArray[np.uint8], lengths: Numbers) -> pa.Array:
    """Cut an array of letters, those of all texts in a row, into texts of these lengths."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(letters))


def _concatenated(*parts: Any) -> pa.Array:
    """Concatenate columns and constant texts row by row."""
    return pc.binary_join_element_wise(*parts, "")


_COLUMNS: Final[dict[tuple[str, str], Callable[[_Events], pa.Array]]] = {
    ("bids", "auction"): lambda e: pa.array(e.draw_auction()),
    ("bids", "bidder"): lambda e: pa.array(e.draw_person("bidder", _HOT_BIDDERS)),
    ("bids", "price"): lambda e: pa.array(e.draw_price("price")),
    ("bids", "channel"): _Events.channel_name,
    ("bids", "url"): _Events.url,
    ("auctions", "id"): lambda e: pa.array(_FIRST_ID + e.last_auction()),
    ("auctions", "item_name"): lambda e: e.draw_text("item_name", 3, 20),
    ("auctions", "description"): lambda e: e.draw_text("description", 3, 100),
    ("auctions", "initial_bid"): lambda e: pa.array(e.draw_price("initial_bid")),
    ("auctions", "reserve"): lambda e: pa.array(
        e.draw_price("initial_bid") + e.draw_price("reserve")
    ),
    ("auctions", "expires"): _Events.draw_expiry,
    ("auctions", "seller"): lambda e: pa.array(e.draw_person("seller", _HOT_SELLERS)),
    ("auctions", "category"): lambda e: pa.array(
        _FIRST_CATEGORY + e.draw_below("category", _CATEGORIES)
    ),
    ("persons", "id"): lambda e: pa.array(_FIRST_ID + e.last_person()),
    ("persons", "name"): lambda e: pc.binary_join_element_wise(
        e.draw_name("first_name", _FIRST_NAMES), e.draw_name("last_name", _LAST_NAMES), " "
    ),
    ("persons", "email_address"): lambda e: _concatenated(
        e.draw_text("user", 3, 7), "@", e.draw_text("host", 3, 5), ".com"
    ),
    ("persons", "credit_card"): _Events.credit_card,
    ("persons", "city"): lambda e: e.draw_name("city", _CITIES),
    ("persons", "state"): lambda e: e.draw_name("state", _STATES),
    **{(kind, "date_time"): _Events.event_times for kind in SCHEMAS},
    **{(kind, "extra"): _Events.draw_filler for kind in SCHEMAS},
}


@user_call
def nexmark(
    kind: NexmarkKind,
    *,
    events_per_second: float = 10_000.0,
    paced: bool = True,
    max_rows_per_epoch: int | None = None,
    num_rows: int | None = None,
    start: dt.datetime | str | None = None,
    seed: int = 0,
) -> NexmarkSource:
    """Generate bids, auctions or persons of the NEXMark benchmark.

    Of every 50 events one is a person, 3 are auctions and 46 are bids. Three sources with the same
    seed, start and rate are consistent: a bid names an auction that was opened before it.

    Parameters
    ----------
    kind
        ``"bids"``, ``"auctions"`` or ``"persons"``. Each kind has its own columns; the event time
        of all is ``date_time``.
    events_per_second
        Events per second of all three kinds together.
    paced
        ``True``: a row arrives when the clock reaches its time. ``False``: rows arrive as fast as
        they are read, with times ahead of the clock; give `max_rows_per_epoch` or `num_rows` too.
    max_rows_per_epoch
        Maximum rows of this kind that one epoch reads; by default all that have arrived.
    num_rows
        Number of rows of this kind after which the source ends; by default it never does.
    start
        Time of the first event of all three kinds, a datetime or ISO 8601 text; by default the time
        of the query's first start.
    seed
        Seed of the rows' values. The same seed, start and rate always give the same rows.

    Raises
    ------
    SourceError
        If there is no such kind, an option is wrong, or ``paced=False`` has neither
        `max_rows_per_epoch` nor `num_rows`.

    Examples
    --------
    >>> nexmark("bids", events_per_second=1000.0).schema.names
    ['auction', 'bidder', 'price', 'channel', 'url', 'date_time', 'extra']
    """
    return NexmarkSource(
        kind,
        events_per_s=events_per_second,
        paced=paced,
        max_rows_per_epoch=max_rows_per_epoch,
        num_rows=num_rows,
        start=start,
        seed=seed,
    )

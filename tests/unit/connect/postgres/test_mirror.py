"""Changes of drawn transactions, read with crashes and restarts: the oracle is the table itself."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from tests.postgres_server import drop_slots
from tests.support.rounds import rounds

import godwit as gw
from godwit.connect.postgres.slot import ChangeStream
from godwit.connect.postgres.source import PostgresSource

if TYPE_CHECKING:
    import pyarrow as pa

pytestmark = pytest.mark.postgres

_ROUNDS = rounds(2, 300)
_LARGE = 3000  # characters of a value that PostgreSQL stores outside of its row

Row = tuple[Any, ...]


class CrashError(Exception):
    """A process is killed."""


class Writer:
    """Draws transactions over two tables, and remembers the first one's rows after each."""

    def __init__(self, dsn: str, rng: random.Random, *, full: bool) -> None:
        self._rng = rng
        self._connection = psycopg.connect(dsn)
        self.execute(
            'CREATE TABLE items (id int, part text COLLATE "C", name text, large text, '
            "price numeric(12, 2), tags int[], PRIMARY KEY (part, id))"
        )
        self.execute("CREATE TABLE log (n bigserial PRIMARY KEY, what text)")
        self.execute("ALTER TABLE items ALTER large SET STORAGE EXTERNAL")
        if full:
            self.execute("ALTER TABLE items REPLICA IDENTITY FULL")
        self._connection.commit()
        self.states = [self.rows()]

    def close(self) -> None:
        self._connection.close()

    def execute(self, statement: str, *values: object) -> None:
        self._connection.execute(statement.encode(), values or None)

    def rows(self) -> Counter[Row]:
        read = self._connection.execute("SELECT id, part, name, large, price, tags FROM items")
        rows = Counter((*row[:5], None if row[5] is None else tuple(row[5])) for row in read)
        self._connection.commit()
        return rows

    def fill(self) -> None:
        """Insert most of the rows that transactions draw."""
        self.execute(
            "INSERT INTO items SELECT i / 4, (ARRAY['a', 'B', E'é\\n', '%s'])[i % 4 + 1], 'first', "
            f"repeat('x', {_LARGE}) FROM generate_series(0, 47) i",
        )
        self._connection.commit()
        self.states.append(self.rows())

    def transaction(self) -> None:
        """Commit a transaction, or roll it back."""
        for _ in range(self._rng.choice([1, 1, 3, 10])):
            self._statement()
        if self._rng.random() < 0.15:
            self._connection.rollback()
        else:
            self._connection.commit()
            if (rows := self.rows()) != self.states[-1]:
                self.states.append(rows)

    def _key(self) -> tuple[int, str]:
        return self._rng.randrange(12), self._rng.choice(["a", "B", "é\n", "%s"])

    def _large(self) -> str | None:
        letters = "".join(self._rng.choices("abcdefgh", k=_LARGE))
        return self._rng.choice([None, "", letters, letters])

    def _statement(self) -> None:
        rng, key = self._rng, self._key()
        what = rng.random()
        if what < 0.4:
            price = rng.choice([None, Decimal("1.50"), Decimal("-7.25")])
            tags = rng.choice([None, [], [1, None], [2, 3]])
            name = rng.choice([None, "", "x,y", '"', "\\N"])
            self.execute(
                "INSERT INTO items VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (part, id) "
                "DO UPDATE SET name = excluded.name, price = excluded.price",
                *(*key, name, self._large(), price, tags),
            )
        elif what < 0.55:
            self.execute("UPDATE items SET name = %s WHERE id = %s", rng.choice("uvw"), key[0])
        elif what < 0.62:
            where = "WHERE id = %s AND part = %s"
            self.execute(f"UPDATE items SET large = %s {where}", self._large(), *key)
        elif what < 0.7:  # the key changes, and what was stored outside with it
            self.execute(
                "UPDATE items SET id = %s, large = coalesce(large, '') || 'k' WHERE id = %s AND "
                "part = %s AND NOT EXISTS (SELECT FROM items WHERE id = %s AND part = %s)",
                *(key[0] + 12, *key, key[0] + 12, key[1]),
            )
        elif what < 0.85:
            self.execute("DELETE FROM items WHERE id = %s", key[0])
        elif what < 0.95:
            self.execute("INSERT INTO log (what) VALUES ('beside')")
        else:
            self.execute("SAVEPOINT s")
            self.execute("DELETE FROM items")
            self.execute("ROLLBACK TO SAVEPOINT s")


def _tags(value: Any) -> tuple[int | None, ...] | None:
    """Return an array as a tuple; it may be read as text."""
    if isinstance(value, str):
        named = [name for name in value[1:-1].split(",") if name]
        return tuple(None if name == "NULL" else int(name) for name in named)
    return None if value is None else tuple(value)


class Target:
    """Rows that a flow gave to its sink."""

    def __init__(self) -> None:
        self.rows: Counter[Row] = Counter()

    def apply(self, rows: pa.Table) -> None:
        for row in rows.to_pylist():
            values = [row[name] for name in ("id", "part", "name", "large", "price", "tags")]
            values[5] = _tags(values[5])
            self.rows[tuple(values)] += row["change"]
        assert min(self.rows.values(), default=0) >= 0, "no row leaves that is not there"
        self.rows = +self.rows


class Faults:
    """Crashes at drawn calls of a source."""

    def __init__(self, rng: random.Random, patch: pytest.MonkeyPatch) -> None:
        self.share, self.num_crashes = 0.0, 0
        for owner, name in (
            (PostgresSource, "read"),
            (PostgresSource, "splits"),
            (PostgresSource, "latest"),
            (ChangeStream, "confirm"),
        ):
            patch.setattr(owner, name, self._faulty(getattr(owner, name), rng))

    def _faulty(self, call: Any, rng: random.Random) -> Any:
        def faulty(*arguments: Any, **options: Any) -> Any:
            if rng.random() < self.share:
                self.num_crashes += 1
                raise CrashError
            return call(*arguments, **options)

        return faulty


@pytest.mark.parametrize("seed", range(_ROUNDS))
@pytest.mark.parametrize("before", [False, True], ids=["upserts", "changes"])
def test_the_target_has_the_rows_of_the_table_over_crashes_at_any_step(
    postgres: str, monkeypatch: pytest.MonkeyPatch, seed: int, before: bool
) -> None:
    rng = random.Random(f"{seed} {before}")
    num_moments: set[int] = set()  # of snapshots that were interrupted
    slot = f"mirror_{seed}_{before}".lower()
    writer, target = Writer(postgres, rng, full=before), Target()
    faults = Faults(rng, monkeypatch)
    interrupts = seed % 2 == 0  # the snapshot
    if interrupts:
        writer.fill()
    for _ in range(rng.choice([0, 5, 20])):
        writer.transaction()
    whole = rng.random() < 0.5
    flow = gw.Flow("mirror", num_key_groups=4)
    columns = "id int, part string, name string, large string, price decimal(12, 2), tags string"
    source = gw.sources.postgres(
        postgres,
        "items",
        slot=slot,
        schema=None if before else columns,  # which `latest` stores
        before=before,
        whole_transactions=whole,
        timeout="5 seconds",
    )
    rows = flow.source("items", source)
    if not before:
        rows = rows.key_by("part", "id").latest()
    flow.sink("items", rows, gw.sinks.noop())
    size = rng.choice([3, 7]) if interrupts else rng.choice([1, 3, 50])
    with contextlib.ExitStack() as stack:
        stack.callback(drop_slots, postgres, slot)
        run = stack.enter_context(gw.testing.cluster(flow))
        state = 0  # of the table, that the target has

        def step() -> bool:
            """Run an epoch; return whether there was one."""
            nonlocal state
            number = len(run.epochs)
            try:
                run._play({}, limit=size)
            except CrashError:
                pass
            except gw.errors.GodwitError as error:
                if not isinstance(error.__cause__, CrashError):
                    raise
            target.rows.clear()
            target.apply(run.rows("items"))
            position = run._driver.sources.positions.get("items")
            if position is not None:
                num_moments.add(len(position["segments"]))
                if whole and position["snapshot"] is None and not position["segments"]:
                    state = writer.states.index(target.rows, state)
            return len(run.epochs) > number

        for number in range(25):
            writer.transaction()
            faults.share = rng.choice([0.0, 0.0, 0.1])
            step()
            restarts = rng.random() < (0.4 if number < 8 else 0.1)
            if restarts or (interrupts and number in {1, 3}):
                run.restart()
        faults.share = 0.0
        for _ in range(2000):
            if not step():
                break
        assert target.rows == writer.states[-1]
    writer.close()
    if seed in {0, 2}:
        assert max(num_moments) > 1, "an interrupted snapshot"

"""Changes of drawn transactions, read with crashes and restarts: the oracle is the table itself."""

from __future__ import annotations

import random
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.rounds import rounds

import godwit as gw

pytest.importorskip("pymysql", reason="MariaDB tests need PyMySQL.")

from godwit.connect.mariadb.server import MariaServer, parse_dsn, query
from godwit.connect.mariadb.source import MariaDBSource
from godwit.connect.mariadb.stream import BinlogStream

if TYPE_CHECKING:
    import pyarrow as pa

pytestmark = pytest.mark.mariadb

_ROUNDS = rounds(2, 300)
_KEYS = ["a", "B", "é", "z "]
_COLUMNS = "id, part, name, large, price, at"

Row = tuple[Any, ...]


class CrashError(Exception):
    """A process is killed."""


class Writer:
    """Draws transactions over two tables, in two domains, and remembers the first one's rows."""

    def __init__(self, url: str, rng: random.Random) -> None:
        self._rng = rng
        self._connection = MariaServer(parse_dsn(url, ""), "").connect()
        self.execute(
            "CREATE TABLE items (id int, part varchar(20) CHARACTER SET latin1, name text "
            "CHARACTER SET utf8mb4, large mediumblob, price decimal(12, 2), at datetime(3), "
            "PRIMARY KEY (part, id))"
        )
        self.execute("CREATE TABLE log (n serial, what text)")
        self._connection.autocommit(False)
        self.states = [self.rows()]

    def close(self) -> None:
        self._connection.close()

    def execute(self, statement: str, *values: object) -> list[Row]:
        return query(self._connection, statement, *values)

    def rows(self) -> Counter[Row]:
        rows = Counter(map(_plain, self.execute(f"SELECT {_COLUMNS} FROM items")))
        self._connection.commit()
        return rows

    def fill(self) -> None:
        """Insert most of the rows that transactions draw."""
        values = [(i // 4, _KEYS[i % 4], "first", b"x" * 300) for i in range(48)]
        for row in values:
            self.execute("INSERT INTO items VALUES (%s, %s, %s, %s, NULL, NULL)", *row)
        self._connection.commit()
        self.states.append(self.rows())

    def transaction(self) -> None:
        """Commit a transaction, or roll it back."""
        self.execute(f"SET gtid_domain_id = {self._rng.choice([0, 0, 5])}")
        for _ in range(self._rng.choice([1, 1, 3, 10])):
            self._statement()
        if self._rng.random() < 0.15:
            self._connection.rollback()
        else:
            self._connection.commit()
            if (rows := self.rows()) != self.states[-1]:
                self.states.append(rows)

    def _key(self) -> tuple[int, str]:
        return self._rng.randrange(12), self._rng.choice(_KEYS)

    def _statement(self) -> None:
        rng, key = self._rng, self._key()
        what = rng.random()
        if what < 0.4:
            self.execute(
                "INSERT INTO items VALUES (%s, %s, %s, %s, %s, %s) "
                "ON DUPLICATE KEY UPDATE name = VALUES(name), price = VALUES(price)",
                *key,
                rng.choice([None, "", "x,y", '"', "🦆"]),
                rng.choice([None, b"", bytes(rng.randbytes(500)), b"a\0\0"]),
                rng.choice([None, "1.50", "-7.25"]),
                rng.choice([None, "2024-01-01 00:00:00.001", "1999-12-31 23:59:59.5"]),
            )
        elif what < 0.55:
            self.execute("UPDATE items SET name = %s WHERE id = %s", rng.choice("uvw"), key[0])
        elif what < 0.62:
            self.execute("UPDATE items SET large = 'l' WHERE id = %s AND part = %s", *key)
        elif what < 0.7:  # the key changes
            self.execute("UPDATE IGNORE items SET id = id + 12 WHERE id = %s AND part = %s", *key)
        elif what < 0.85:
            self.execute("DELETE FROM items WHERE id = %s", key[0])
        elif what < 0.95:
            self.execute("INSERT INTO log (what) VALUES ('beside')")
        else:
            self.execute("SAVEPOINT s")
            self.execute("DELETE FROM items")
            self.execute("ROLLBACK TO SAVEPOINT s")


def _plain(row: Row) -> Row:
    """Return a row of text as one of values."""
    number, part, name, large, price, at = row
    return int(number), part, name, large, None if price is None else Decimal(price), at


class Target:
    """Rows that a flow gave to its sink."""

    def __init__(self) -> None:
        self.rows: Counter[Row] = Counter()

    def apply(self, rows: pa.Table) -> None:
        self.rows.clear()
        for row in rows.to_pylist():
            at = None if row["at"] is None else row["at"].isoformat(" ", "milliseconds")
            values = [row[name] for name in ("id", "part", "name", "large", "price")]
            self.rows[*values, at] += row["change"]
        assert min(self.rows.values(), default=0) >= 0, "no row leaves that is not there"
        self.rows = +self.rows


class Faults:
    """Crashes at drawn calls of a source."""

    def __init__(self, rng: random.Random, patch: pytest.MonkeyPatch) -> None:
        self.share = 0.0
        for owner, name in (
            (MariaDBSource, "read"),
            (MariaDBSource, "splits"),
            (MariaDBSource, "latest"),
            (BinlogStream, "confirm"),
        ):
            patch.setattr(owner, name, self._faulty(getattr(owner, name), rng))

    def _faulty(self, call: Any, rng: random.Random) -> Any:
        def faulty(*arguments: Any, **options: Any) -> Any:
            if rng.random() < self.share:
                raise CrashError
            return call(*arguments, **options)

        return faulty


@pytest.mark.parametrize("seed", range(_ROUNDS))
@pytest.mark.parametrize("before", [False, True], ids=["upserts", "changes"])
def test_the_target_has_the_rows_of_the_table_over_crashes_at_any_step(
    mariadb: str, monkeypatch: pytest.MonkeyPatch, seed: int, before: bool
) -> None:
    rng = random.Random(f"{seed} {before}")
    num_moments: set[int] = set()  # of snapshots that were interrupted
    writer, target = Writer(mariadb, rng), Target()
    faults = Faults(rng, monkeypatch)
    interrupts = seed % 2 == 0  # the snapshot
    if interrupts:
        writer.fill()
    for _ in range(rng.choice([0, 5, 20])):
        writer.transaction()
    whole = rng.random() < 0.5
    flow = gw.Flow("mirror", num_key_groups=4)
    source = gw.sources.mariadb(
        mariadb, "items", before=before, whole_transactions=whole, timeout="5 seconds"
    )
    rows = flow.source("items", source)
    if not before:
        rows = rows.key_by("part", "id").latest()
    flow.sink("items", rows, gw.sinks.noop())
    size = rng.choice([3, 7]) if interrupts else rng.choice([1, 3, 50])
    with gw.testing.cluster(flow) as run:
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
            if rng.random() < (0.4 if number < 8 else 0.1):
                run.restart()
            if rng.random() < 0.1:
                writer.execute("FLUSH BINARY LOGS")
        faults.share = 0.0
        for _ in range(2000):
            if not step():
                break
        assert target.rows == writer.states[-1]
    writer.close()
    if seed in {0, 2}:
        assert max(num_moments) > 1, "an interrupted snapshot"

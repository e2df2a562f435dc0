"""Tables that a Delta sink cannot write to say so when it opens; those that it can, it writes."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.delta_logs import Field, commit, field, make_table
from tests.support.epoch_rows import SCHEMA, EpochRows, context, rows

import godwit as gw
from godwit.model.errors import SinkError
from godwit.sinks.target_sink import RetryPolicy

if TYPE_CHECKING:
    from godwit.connect.delta.sink import DeltaSink

deltalake = pytest.importorskip("deltalake", reason="Delta tests need deltalake.")

GUIDE = Path(__file__).parents[4] / "docs/guide/delta.md"
MODES = ["append", "upsert", "complete"]
COLUMNS = [field("plane", "string"), field("total", "long")]
WRITTEN = {
    "append": [("N1", 1), ("N1", 2), ("N2", 3)],
    "upsert": [("N1", 2), ("N2", 3)],
    "complete": [("N1", 2), ("N2", 3)],
}


def opened(
    path: Path | str, mode: str = "append", schema: pa.Schema = SCHEMA, **options: Any
) -> DeltaSink:
    sink = gw.sinks.delta(path, mode="upsert" if mode == "upsert" else "append", **options)
    sink.open(context(schema=schema, complete=mode == "complete"))
    return sink


def read(path: Path | str) -> list[tuple[Any, ...]]:
    table = pa.table(
        deltalake.QueryBuilder()
        .register("t", deltalake.DeltaTable(path))
        .execute("SELECT plane, total FROM t")
    )
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


def deliver_two(sink: DeltaSink) -> None:
    sink.deliver(rows(0, ("N1", 1)))
    sink.deliver(rows(1, ("N1", 2), ("N2", 3)))


def mapped(name: str, number: int) -> dict[str, Any]:
    return {
        "delta.columnMapping.id": number,
        "delta.columnMapping.physicalName": f"col-{name}",
    }


def guide_features() -> dict[str, str]:
    """What the guide says of each feature: ``written`` or ``refused``."""
    found = {}
    for names, said in re.findall(
        r"^\| (`.*`) \| (written|refused)", GUIDE.read_text(), re.MULTILINE
    ):
        found.update(dict.fromkeys(re.findall(r"`([\w-]+)`", names), said))
    return found


READER_FEATURES = {
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "v2Checkpoint",
    "vacuumProtocolCheck",
    "typeWidening",
    "typeWidening-preview",
    "variantType",
    "variantType-preview",
    "variantShredding",
    "variantShredding-preview",
    "catalogManaged",
    "catalogOwned-preview",
}


def of_feature(path: Path, feature: str) -> Path:
    """A table with a feature in use, as far as its log says."""
    columns: list[Field] = COLUMNS
    properties = {
        "columnMapping": {
            "delta.columnMapping.mode": "name",
            "delta.columnMapping.maxColumnId": "2",
        },
        "deletionVectors": {"delta.enableDeletionVectors": "true"},
        "changeDataFeed": {"delta.enableChangeDataFeed": "true"},
        "v2Checkpoint": {"delta.checkpointPolicy": "v2", "delta.checkpointInterval": "1"},
        "rowTracking": {"delta.enableRowTracking": "true"},
        "inCommitTimestamp": {"delta.enableInCommitTimestamps": "true"},
    }
    if feature == "columnMapping":
        columns = [
            field(column["name"], column["type"], mapped(column["name"], number))
            for number, column in enumerate(COLUMNS, 1)
        ]
    is_of_readers = feature in READER_FEATURES
    return make_table(
        path,
        columns,
        features=[] if is_of_readers else [feature],
        reader_features=[feature] if is_of_readers else [],
        properties=properties.get(feature),
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("feature", [*guide_features(), "someFeatureToCome"])
def test_a_feature_is_written_or_refused_as_the_guide_says(
    tmp_path: Path, feature: str, mode: str
) -> None:
    path = of_feature(tmp_path / "t", feature)
    if guide_features().get(feature) == "written":
        deliver_two(opened(path, mode))
        assert read(path) == WRITTEN[mode]
        return
    with pytest.raises(SinkError, match=r"does not support \(.*\)|cannot open") as caught:
        opened(path, mode)
    assert re.search("write to another table|use another path", caught.value.remedy)
    assert len(list((path / "_delta_log").iterdir())) == 1


def test_the_guide_has_every_feature_that_the_format_had_when_it_was_written() -> None:
    said = guide_features()
    assert len(said) == 29
    assert {name for name in said if said[name] == "written"} == {
        *["appendOnly", "changeDataFeed", "checkConstraints", "columnMapping", "deletionVectors"],
        *["generatedColumns", "invariants", "timestampNtz", "v2Checkpoint"],
        *["variantType", "variantType-preview"],
    }


@pytest.mark.parametrize(
    ("versions", "is_taken"),
    [((1, number), number < 6) for number in range(1, 5)]
    + [((2, 5), True), ((2, 6), False), ((1, 8), False)],
)
def test_protocols_without_features_are_written_up_to_the_one_that_asks_for_identities(
    tmp_path: Path, versions: tuple[int, int], is_taken: bool
) -> None:
    path = make_table(tmp_path / "t", COLUMNS, versions=versions)
    if is_taken:
        deliver_two(opened(path, "upsert"))
        assert read(path) == WRITTEN["upsert"]
    else:
        with pytest.raises(SinkError, match="writer version"):
            opened(path, "upsert")


def test_what_only_the_installed_library_knows_is_found_by_a_rehearsal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from godwit.connect.delta import table as delta_table

    known = {*delta_table._FEATURES, "rowTracking"}
    monkeypatch.setattr(delta_table, "_FEATURES", known)
    path = make_table(tmp_path / "t", COLUMNS, features=["rowTracking"])
    with pytest.raises(
        SinkError, match=r"does not support \(Unsupported table features.*RowTracking"
    ):
        opened(path)
    assert len(list((path / "_delta_log").iterdir())) == 1


def test_a_feature_that_comes_while_a_query_runs_is_named(tmp_path: Path) -> None:
    path = make_table(tmp_path / "t", COLUMNS)
    sink = opened(path)
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["rowTracking"]}
    commit(path, [{"protocol": protocol}])
    with pytest.raises(SinkError, match=r"does not support \(rowTracking\)"):
        sink.deliver(rows(0, ("N1", 1)))
    commit(path, [{"protocol": {**protocol, "writerFeatures": []}}])
    sink.deliver(rows(0, ("N1", 1)))
    assert read(path) == [("N1", 1)]


# --- properties and columns -------------------------------------------------------------------


@pytest.mark.parametrize("versions", [None, (1, 2)])
@pytest.mark.parametrize("mode", MODES)
def test_a_table_that_only_grows_takes_appended_rows_alone(
    tmp_path: Path, mode: str, versions: tuple[int, int] | None
) -> None:
    properties = {"delta.appendOnly": "true"}
    path = make_table(
        tmp_path / "t", COLUMNS, features=["appendOnly"], versions=versions, properties=properties
    )
    if mode == "append":
        deliver_two(opened(path, mode))
        assert read(path) == WRITTEN[mode]
    else:
        with pytest.raises(SinkError, match="append-only"):
            opened(path, mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_given", [False, True])
def test_columns_that_the_table_computes_are_refused(
    tmp_path: Path, mode: str, is_given: bool
) -> None:
    twice = field("twice", "long", {"delta.generationExpression": "total * 2"})
    path = make_table(tmp_path / "t", [*COLUMNS, twice], features=["generatedColumns"])
    schema = pa.schema([*SCHEMA, ("twice", pa.int64())]) if is_given else SCHEMA
    with pytest.raises(SinkError, match=r"has generated columns|other columns: twice"):
        opened(path, mode, schema)


def test_a_list_whose_values_must_not_be_null_is_told_apart_from_one_whose_may(
    tmp_path: Path,
) -> None:
    strict = {"type": "array", "elementType": "string", "containsNull": False}
    path = make_table(tmp_path / "t", [field("plane", strict)])
    schema = pa.schema([("plane", pa.list_(pa.string()))])
    with pytest.raises(SinkError, match=r"contains_null=True.* in the rows.*contains_null=False"):
        opened(path, schema=schema)


def test_a_table_that_forgets_epochs_is_refused(tmp_path: Path) -> None:
    path = make_table(
        tmp_path / "t",
        COLUMNS,
        properties={"delta.setTransactionRetentionDuration": "interval 7 days"},
    )
    with pytest.raises(SinkError, match="drops transaction ids"):
        opened(path)


def test_texts_that_are_longer_than_their_type_are_found_before_the_commit(tmp_path: Path) -> None:
    columns = [
        field("plane", "string", {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}),
        field(
            "places",
            {"type": "array", "elementType": "string", "containsNull": True},
            {"__CHAR_VARCHAR_TYPE_STRING": "array<char(2)>"},
        ),
    ]
    schema = pa.schema([("plane", pa.string()), ("places", pa.list_(pa.string()))])
    sink = opened(make_table(tmp_path / "t", columns), schema=schema)
    found = sink.row_check()(
        pa.record_batch(
            [["abc", "abcd", "äöü", None], [["ab"], None, ["a", "abc"], []]], schema=schema
        )
    )
    assert found is not None
    assert found.rows.tolist() == [1, 2]
    assert "more characters than the 3" in found.reasons[0]


def test_lengths_of_some_texts_of_a_column_are_refused(tmp_path: Path) -> None:
    inner = {"type": "struct", "fields": [field("a", "string"), field("b", "string")]}
    text = {"__CHAR_VARCHAR_TYPE_STRING": "struct<a:varchar(3),b:string>"}
    path = make_table(tmp_path / "t", [field("plane", inner, text)])
    schema = pa.schema([("plane", pa.struct([("a", pa.string()), ("b", pa.string())]))])
    with pytest.raises(SinkError, match="lengths cannot be checked"):
        opened(path, schema=schema)


def test_a_library_that_is_too_old_is_refused() -> None:
    from godwit.connect.delta.table import check_library

    assert check_library("1.6.0") is None
    assert check_library("2.0.0rc1") is None
    problem = check_library("1.5.1")
    assert problem is not None
    assert "deltalake>=1.6" in problem.remedy


# --- names and paths --------------------------------------------------------------------------

ODD_NAMES = [
    *["a b", "a%20b", "%", "#", "+", "a/b", "a=b", "a.b", "..", "a'b", 'a"b', "a`b", "ä", "日本"],
    *["source", "target.x", "_change_type", "_metadata", "select", "?", "*", "{x}", "a,b", "a:b"],
    *[" a", "x\ny", "", "1", "null", "x" * 200],
]


@pytest.mark.parametrize(("mode", "is_partition"), [("append", True), ("upsert", False)])
@pytest.mark.parametrize("name", ODD_NAMES)
def test_an_odd_name_works_or_is_refused_before_there_is_a_table(
    tmp_path: Path, name: str, is_partition: bool, mode: Any
) -> None:
    schema = pa.schema([*SCHEMA, (name, pa.string())])
    path = tmp_path / "t"
    is_bad = (mode == "upsert" and "`" in name) or (is_partition and name in {"a:b", " a", "x\ny"})
    options: dict[str, Any] = {"partition_by": name} if is_partition else {}
    if mode == "upsert":
        options["keys"] = [name]
    sink = gw.sinks.delta(path, mode=mode, **options)
    ctx = context(schema=schema, keys=())
    if is_bad:
        with pytest.raises(SinkError, match="Rename"):
            sink.open(ctx)
        assert not path.exists()
        return
    sink.open(ctx)
    for epoch in range(2):
        values = pa.table([["N1", "N2"], [epoch, epoch], ["x", None]], schema=schema)
        sink.deliver(EpochRows(epoch=epoch, table=values))
        deltalake.DeltaTable(path).optimize.compact()
    found = pa.table(
        deltalake.QueryBuilder()
        .register("t", deltalake.DeltaTable(path))
        .execute("SELECT * FROM t ORDER BY total, plane")
    ).to_pylist()
    epochs = [1] if mode == "upsert" else [0, 1]
    assert [(row["total"], row[name]) for row in found] == [
        (epoch, value) for epoch in epochs for value in ("x", None)
    ]


def test_names_that_differ_only_by_case_are_refused(tmp_path: Path) -> None:
    schema = pa.schema([*SCHEMA, ("Plane", pa.string())])
    with pytest.raises(SinkError, match="differ only in case"):
        opened(tmp_path / "t", schema=schema)
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    "dtype", [pa.struct([]), pa.list_(pa.struct([("x", pa.struct([]))]))], ids=str
)
def test_structs_without_fields_are_refused(tmp_path: Path, dtype: pa.DataType) -> None:
    schema = pa.schema([*SCHEMA, ("nothing", dtype)])
    with pytest.raises(SinkError, match=r"'nothing' of type .*struct<>.* cannot be a column"):
        opened(tmp_path / "t", schema=schema)
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_texts_that_are_views_are_written(tmp_path: Path, mode: str) -> None:
    schema = pa.schema([("plane", pa.string_view()), ("total", pa.int64())])
    sink = opened(tmp_path / "t", mode, schema)
    for epoch in range(2):
        sink.deliver(EpochRows(epoch=epoch, table=rows(epoch, ("N1", 1)).table.cast(schema)))
    assert read(tmp_path / "t") == [("N1", 1)] * (1 if mode == "upsert" else 2)


@pytest.mark.parametrize("lanes", [False, True])
@pytest.mark.parametrize("name", ["my dir", "ä#+", "50% off", "a?b", "a=b", "'\"`", "..x", "日本"])
def test_a_table_may_be_at_a_path_with_odd_characters(
    tmp_path: Path, name: str, lanes: bool
) -> None:
    for path in (tmp_path / name / f"t {name}", (tmp_path / f"{name} uri").as_uri()):
        sink = opened(path, lane_bytes=0)
        table = rows(0, ("N1", 1)).table
        if lanes:
            writer = sink.lane_writer()
            assert writer is not None
            files = writer.write(table, epoch=0, place=0) or ()
            sink.deliver(EpochRows(epoch=0, table=table.slice(0, 0), written=files))
        else:
            sink.deliver(EpochRows(epoch=0, table=table))
        assert read(path) == [("N1", 1)]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("dbfs:/mnt/t", "scheme 'dbfs' is of no file system"),
        ("ftp://host/t", "scheme 'ftp' is of no file system"),
        ("file:t", "begins with file:, which deltalake would read as the scheme"),
        ("jdbc:postgresql://h/t", "begins with jdbc:, which deltalake would read as the scheme"),
        ("{tmp}/a%20b", "% with two digits"),
        ("file://{tmp}/a%2520b", "% with two digits"),
        *(
            (f"{{tmp}}/a{character}b/t", "deltalake does not support")
            for character in "[]^|\\\n\x7f"
        ),
        ("file://{tmp}/a%5Bb", "deltalake does not support"),
    ],
)
def test_a_path_that_cannot_work_is_refused_at_once(
    tmp_path: Path, path: str, message: str
) -> None:
    with pytest.raises(SinkError, match=message):
        opened(path.format(tmp=tmp_path))
    assert list(tmp_path.iterdir()) == []


# --- other writers at the same time -----------------------------------------------------------


@dataclass
class Clock:
    """A clock that only waiting moves on, and `pace` times as long as it was meant to take."""

    pace: float = 1.0
    now_s: float = 0.0

    def read(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds * self.pace


def beside_a_writer(
    path: Path, conflicts: int, *, pace: float = 1.0
) -> tuple[DeltaSink, EpochRows]:
    """A sink and an epoch in the middle of whose first attempts another writer commits."""
    clock = Clock(pace)
    sink = opened(path, "upsert")
    sink.deliver(rows(0, ("N1", 0)))
    sink._retry_policy = RetryPolicy(
        clock=clock.read, sleep=clock.sleep, uniform=lambda low, high: high
    )
    met = 0

    def theirs() -> None:
        table = deltalake.DeltaTable(path)
        table.update(updates={"total": "total + 1"}, predicate="plane = 'N1'")

    def overtake(batch: int) -> None:
        nonlocal met
        if batch == 0 and met < conflicts:
            met += 1
            thread = threading.Thread(target=theirs)
            thread.start()
            thread.join(60)

    return sink, EpochRows(epoch=1, table=rows(1, ("N1", 100)).table, on_batch=overtake)


def test_an_upsert_outlasts_a_writer_that_commits_at_every_attempt(tmp_path: Path) -> None:
    sink, epoch = beside_a_writer(tmp_path / "t", 40)
    sink.deliver(epoch)
    assert read(tmp_path / "t") == [("N1", 100)]


def test_the_error_says_how_often_others_commit(tmp_path: Path) -> None:
    sink, epoch = beside_a_writer(tmp_path / "t", 1000, pace=8)
    with pytest.raises(SinkError, match=r"\d+ attempts in 3\d\d s met commits of other") as caught:
        sink.deliver(epoch)
    assert ".." not in str(caught.value)


def test_a_commit_that_fails_while_nobody_else_commits_is_not_tried_for_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltalake.exceptions import CommitFailedError

    from godwit.connect.delta.sink import DeltaSink

    sink, epoch = beside_a_writer(tmp_path / "t", 0)
    attempts = 0

    def fail(*_: Any, **__: Any) -> None:
        nonlocal attempts
        attempts += 1
        raise CommitFailedError("The disk is full.")

    monkeypatch.setattr(DeltaSink, "_commit_rows", fail)
    with pytest.raises(
        SinkError, match=r"The disk is full\. The table has either all of the epoch"
    ):
        sink.deliver(epoch)
    assert attempts == 3

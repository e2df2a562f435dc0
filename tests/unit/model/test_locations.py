"""One rule says which place a path or a URI is, for pyarrow, for Godwit and for Hadoop."""

from __future__ import annotations

import os
import random
from pathlib import Path
from urllib.parse import quote

import pyarrow.fs as pafs
import pytest

from godwit.checkpoint.storage import CheckpointStorage
from godwit.model.errors import CheckpointError
from godwit.model.locations import check_location, hadoop_location, is_remote, is_uri, local_path

CHARACTERS = " %2055+#?*[]{}:;,@&=~'\"\\<>|äé\u0301日.-_abc"


@pytest.mark.parametrize("seed", range(20))
def test_a_path_its_uri_and_pyarrow_name_one_place(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(50):
        parts = ["".join(draw.choices(CHARACTERS, k=draw.randint(1, 8))) for _ in range(3)]
        path = os.path.abspath("/" + "/".join(parts))  # noqa: PTH100  names such as ".."
        uri = Path(path).as_uri()
        check_location(uri, CheckpointError)
        assert local_path(path) == local_path(uri) == path
        assert local_path(f"file:{quote(path)}") == path
        assert pafs.FileSystem.from_uri(uri)[1] == path
        assert hadoop_location(path) == hadoop_location(uri) == f"file://{path}"


def test_a_relative_path_is_one_of_the_working_directory() -> None:
    assert local_path("my dir/50%20") == str(Path.cwd() / "my dir/50%20")
    assert local_path("run:1/ck") == str(Path.cwd() / "run:1/ck")


def test_the_parent_of_a_link_is_that_of_its_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real/deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real/deep")
    monkeypatch.chdir(tmp_path)
    spelled = ["link", "link/x", "link/..", "link/../x", "absent/../x", "a/../link/../x/", ".."]
    spelled += ["a../b", "a/..b", "../a", "/..", "/../a", "//a", "//../a/..", "./link/../link/y"]
    for path in spelled:
        assert os.path.realpath(local_path(path) or "") == os.path.realpath(path)
        assert str(local_path(path)).startswith("//") is False
    assert local_path("link/x") == f"{tmp_path}/link/x"
    assert local_path(f"file://{tmp_path}/link/../a%20b") == f"{tmp_path}/real/a b"


def test_other_file_systems_are_no_path_here() -> None:
    for uri in ("s3://bucket/a%20b", "hdfs://node:8020/x", "abfss://c@account/x"):
        assert (is_uri(uri), is_remote(uri), local_path(uri)) == (True, True, None)
    assert not is_remote("file:///x")
    assert not is_uri("a:b")


def test_hadoop_gets_what_pyarrow_decodes() -> None:
    uri = "s3://bucket/a%20b/50%25/%C3%A4"
    _, path = pafs.FileSystem.from_uri(f"{uri}?region=eu-west-1")
    assert hadoop_location(uri) == f"s3://{path}"


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("~/ck", "os.path.expanduser"),
        ("~anna/ck", "expanduser"),
        ("file://node/ck", "three slashes"),
        ("file://ck", "three slashes"),
        ("file://", "has no path"),
        ("file://localhost", "has no path"),
        ("ck\ud800", "no UTF-8"),
        ("file:///a?b", "%3F"),
        ("file:///a#b", "%23"),
        ("file:///a%FFb", "no UTF-8"),
        ("a\0b", "zero byte"),
        ("file:///a%00b", "zero byte"),
        ("s3://bucket/a/../b", "a part . or .."),
    ],
)
def test_a_place_that_was_hardly_meant_is_refused(location: str, words: str) -> None:
    with pytest.raises(CheckpointError, match=words.replace(".", r"\.")):
        check_location(location, CheckpointError)


@pytest.mark.parametrize("location", ["", None, 3, b"ck", ["ck"]])
def test_what_is_no_path_is_refused(location: object) -> None:
    with pytest.raises(CheckpointError, match="must be a path or a URI, but is"):
        check_location(location, CheckpointError)
    if location is not None:
        with pytest.raises(CheckpointError, match="must be a path or a URI, but is"):
            CheckpointStorage.open(location)  # type: ignore[arg-type]


@pytest.mark.parametrize("location", ["./~/ck", "a~", "a~/b", "file:///~/x", "s3://b/~/x", "/~/x"])
def test_a_tilde_elsewhere_is_a_character(location: str) -> None:
    check_location(location, CheckpointError)

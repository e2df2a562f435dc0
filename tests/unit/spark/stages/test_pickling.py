"""Classes of the main script reach another Python that has no such script."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = '''
from __future__ import annotations
import dataclasses, datetime as dt, enum, subprocess, sys
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypedDict
import msgspec
from godwit.values.codec import make_codec
from godwit.spark.stages.pickling import dumps

class Side(enum.Enum):
    BUY = 1
    SELL = 2

class Point(NamedTuple):
    x: int = 0
    def doubled(self): return self.x * 2

class Extra(TypedDict, total=False):
    note: str

@dataclasses.dataclass
class Level:
    price: float = 0.0
    side: Side = Side.BUY
    sizes: list[int] = dataclasses.field(default_factory=list)
    def total(self): return sum(self.sizes)

@dataclasses.dataclass(frozen=True, slots=True)
class Slim:
    n: int = 3

class Base(msgspec.Struct):
    name: str = "base"
    def shout(self): return self.name.upper()

class Book(Base, kw_only=True):
    """A book."""
    limit: ClassVar[int] = 7
    levels: list[Level] = []
    best: dict[str, Point] = msgspec.field(default_factory=lambda: {"a": Point(1)})
    side: Side | None = None
    parts: list[Book] = msgspec.field(default_factory=lambda: [Book(parts=[])][:0])
    slim: Slim = Slim()
    extra: Extra = msgspec.field(default_factory=Extra)
    when: dt.date | None = None
    seen: int = 0
    def __post_init__(self): self.seen += 1 if isinstance(self, Book) else 0
    def fresh(self): return Book(name="fresh")
    @property
    def depth(self): return len(self.levels) + Book.limit

def use(codec, blobs):
    import dataclasses
    book, = codec.decode(blobs)
    assert type(book) is Book and type(book.levels[0]) is Level and isinstance(book, Base)
    assert dataclasses.fields(Level)[0].name == "price"
    assert book.levels[0].side is Side.SELL and book.levels[0].total() == 3, book.levels
    assert book.shout() == "MAIN" and book.depth == 8 and Book.__doc__ == "A book."
    assert book.fresh().name == "fresh" and book.fresh().parts == [] and book.fresh().seen == 1
    assert book.best["a"].doubled() == 2 and book.slim == Slim() and book.seen == 5
    assert book.parts == [Book(name="part", seen=0)], book.parts
    book.levels.append(Level())
    return codec.encode([book])

def make():
    book = Book(name="main", levels=[Level(side=Side.SELL, sizes=[1, 2])],
                parts=[Book(name="part")])
    book.seen = 5
    return book

if __name__ == "__main__" or True:
    for held in (Book, Level, Slim, list[Level], dict[str, Side]):
        codec = make_codec("o", "msgpack", held, [Book])
        codec.decode(codec.encode([held()]))
    codec = make_codec("o", "msgpack", Book)
    blobs = [memoryview(blob) for blob in codec.encode([make()])]
    data = dumps((use, codec, [bytes(blob) for blob in blobs]))
    there = "import pickle, sys; use, codec, blobs = pickle.load(sys.stdin.buffer); "
    there += "back = use(codec, [memoryview(b) for b in blobs]); sys.stdout.buffer.write(back[0])"
    out = subprocess.run([sys.executable, "-c", there], input=data, capture_output=True)
    assert out.returncode == 0, out.stderr.decode()
    book, = codec.decode([memoryview(out.stdout)])
    assert len(book.levels) == 2 and book.seen == 5
    print("done")
'''


@pytest.mark.parametrize("how", ["script", "standard input"])
def test_classes_of_the_main_script_arrive_whole(how: str, tmp_path: object) -> None:
    if how == "script":
        path = f"{tmp_path}/job.py"
        with open(path, "w") as file:  # noqa: PTH123
            file.write(SCRIPT)
        ran = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    else:
        ran = subprocess.run(
            [sys.executable, "-"], input=SCRIPT, capture_output=True, text=True, check=False
        )
    assert ran.stdout == "done\n", ran.stderr

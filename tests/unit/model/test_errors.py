"""Every error that users can catch is in one place, and the guide says what to do about it."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
import re
from pathlib import Path

import pytest

import godwit
from godwit.model import errors
from godwit.model.errors import GodwitError

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "errors.md"


def kinds(of: type[GodwitError]) -> set[type[GodwitError]]:
    direct = set(of.__subclasses__())
    return direct.union(*(kinds(kind) for kind in direct))


def test_every_error_is_or_is_a_kind_of_one_that_is_exported() -> None:
    for module in pkgutil.walk_packages(godwit.__path__, "godwit."):
        importlib.import_module(module.name)
    exported = {getattr(errors, name) for name in errors.__all__} - {GodwitError}
    strangers = {
        kind.__qualname__
        for kind in kinds(GodwitError)
        # What commands alone raise, a program of a user cannot catch.
        if kind.__module__.startswith("godwit.")
        and not kind.__module__.startswith(("godwit.cli.", "godwit.ops."))
        if not exported & set(kind.__mro__)
    }
    assert strangers == set()


def test_the_guide_has_every_error_and_no_other() -> None:
    told = re.findall(r"^\| `(\w+Error)` \|", GUIDE.read_text("utf-8"), re.MULTILINE)
    assert sorted(told) == sorted(set(errors.__all__) - {"GodwitError"})


@pytest.mark.parametrize("name", errors.__all__)
def test_an_error_survives_pickling_with_its_parts(name: str) -> None:
    made = getattr(errors, name)("It broke.", remedy="Mend it.", where="here")
    back = pickle.loads(pickle.dumps(made))
    assert type(back) is type(made)
    assert str(back) == "It broke. Mend it."
    assert (back.message, back.remedy) == ("It broke.", "Mend it.")
    assert back.context == {"where": "here"}
    assert isinstance(back, GodwitError)
    assert made.__doc__

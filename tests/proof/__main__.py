"""`python -m tests.proof write DIR`, then, after a change, `python -m tests.proof compare DIR`.

Each part is one JSON file in DIR.  All parts are independent of the paths of modules and tests, so
that moved files are no difference.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.proof import parts
from tests.support.files_in_memory import use_memory_for_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "public": parts.public_names,
    "commands": parts.commands,
    "tests": parts.test_names,
    "records": parts.checkpoint_records,
    "wheel": parts.wheel_files,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proof", description=__doc__)
    parser.add_argument("action", choices=["write", "compare"])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--only", choices=[*PARTS], nargs="*", default=[*PARTS])
    parser.add_argument("--limit", type=int, default=40, help="differences to print of each part")
    args = parser.parse_args()
    use_memory_for_files()
    args.directory.mkdir(parents=True, exist_ok=True)
    num_different = 0
    for name in args.only:
        path, present = args.directory / f"{name}.json", PARTS[name]()
        if args.action == "write":
            path.write_text(json.dumps(present, indent=0, sort_keys=True) + "\n")
            print(f"{name}: {len(present)} entries in {path}", flush=True)
            continue
        former = json.loads(path.read_text())
        lines = list(_differences(former, json.loads(json.dumps(present))))
        num_different += bool(lines)
        print(f"{name}: {len(former)} entries before, {len(present)} now;", end=" ")
        print(f"{len(lines)} differences" if lines else "the same", flush=True)
        print(*(f"  {line}\n" for line in lines[: args.limit]), sep="", end="", flush=True)
        if len(lines) > args.limit:
            print(f"  ... and {len(lines) - args.limit} more (--limit)", flush=True)
    return 1 if num_different else 0


def _differences(former: Any, present: Any, path: str = "") -> Iterator[str]:
    """Yield the places at which two JSON values differ."""
    if isinstance(former, dict) and isinstance(present, dict):
        for key in sorted({*former, *present}):
            place = f"{path} > {key}" if path else key
            if key not in present:
                yield f"lost: {place}: {_short(former[key])}"
            elif key not in former:
                yield f"new: {place}: {_short(present[key])}"
            else:
                yield from _differences(former[key], present[key], place)
    elif isinstance(former, list) and isinstance(present, list) and len(former) == len(present):
        for number, (before, after) in enumerate(zip(former, present, strict=True)):
            yield from _differences(before, after, f"{path}[{number}]")
    elif isinstance(former, str) and isinstance(present, str) and "\n" in former:
        lines = difflib.ndiff(former.splitlines(), present.splitlines())
        yield from (f"changed: {path}: {line}" for line in lines if line[0] in "+-")
    elif former != present:
        yield f"changed: {path}: {_short(former)} -> {_short(present)}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) < 300 else f"{text[:300]}..."


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.golden RELEASE`: store the checkpoints of all flows that have none yet."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.golden.flows import FLOWS
from tests.golden.playing import FOLDER, SUFFIX, pack, play_first, play_query
from tests.support.files_in_memory import use_memory_for_files


def main(release: str) -> None:
    use_memory_for_files()
    (FOLDER / release).mkdir(exist_ok=True)
    for name in FLOWS:
        archive = FOLDER / release / f"{name}{SUFFIX}"
        if not archive.exists():
            with tempfile.TemporaryDirectory() as root:
                if FLOWS[name].on_spark is None:
                    play_first(name, Path(root) / "checkpoint")
                else:
                    play_query(name, Path(root))
                archive.write_bytes(pack(Path(root) / "checkpoint"))
            print(f"{archive}: {archive.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1])

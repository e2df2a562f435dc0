"""`python -m tests.streams --rounds N --seed S`: play N drawn flows, say where they differ."""

from __future__ import annotations

import argparse
import sys
import tempfile
import traceback
from pathlib import Path

from tests.contract import drawn_flows
from tests.streams.playing import play, play_by_testing


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.streams", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1_000, help="flows to play")
    parser.add_argument("--seed", type=int, default=0, help="the first of them")
    parser.add_argument(
        "--conducted",
        action="store_true",
        help="under the real conductor: migrations, regrouping, executors and drivers that die",
    )
    parser.add_argument("--testing", action="store_true", help="by godwit.testing, as users do")
    args = parser.parse_args()
    one = _conducted if args.conducted else play_by_testing if args.testing else play
    different = 0
    for seed in range(args.seed, args.seed + args.rounds):
        try:
            found = one(seed)
        except Exception:  # noqa: BLE001 - that is what is looked for
            found = [traceback.format_exc(limit=-6)]
        if found:
            different += 1
            print(f"seed {seed}:", *found, sep="\n  ", flush=True)
        played = seed - args.seed + 1
        if played % 100 == 0:  # for whoever ends it early
            print(f"{played} so far, {different} differ", file=sys.stderr, flush=True)
    print(f"{args.rounds} flows played, {different} differ")
    return 1 if different else 0


def _conducted(seed: int) -> list[str]:
    with tempfile.TemporaryDirectory() as root:
        return drawn_flows.play(seed, Path(root))


if __name__ == "__main__":
    sys.exit(main())

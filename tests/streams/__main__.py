"""`python -m tests.streams --rounds N --seed S`: play N drawn flows, say where they differ."""

from __future__ import annotations

import argparse
import sys
import traceback

from tests.streams.playing import play


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.streams", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1_000, help="flows to play")
    parser.add_argument("--seed", type=int, default=0, help="the first of them")
    args = parser.parse_args()
    different = 0
    for seed in range(args.seed, args.seed + args.rounds):
        try:
            found = play(seed)
        except Exception:  # noqa: BLE001 - that is what is looked for
            found = [traceback.format_exc(limit=-6)]
        if found:
            different += 1
            print(f"seed {seed}:", *found, sep="\n  ", flush=True)
    print(f"{args.rounds} flows played, {different} differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())

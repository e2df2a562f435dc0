"""`python -m tests.fuzz --rounds N --seed S`: read N hostile checkpoints, say what was found."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz.campaign import run_campaign, work
from tests.fuzz.starts import findings_of_start

SPREAD = 10_000_000


def tell(number: int, what: list[str]) -> None:
    for finding in what:
        print(f"variant {number}: {finding}", flush=True)


def start(first: int, count: int) -> int:
    """Start flows on variants of their checkpoints; no other process stands by."""
    different = 0
    with TemporaryDirectory() as directory:
        for number in range(first, first + count):
            what = findings_of_start(number, Path(directory) / "variant")
            different += bool(what)
            tell(number, what)
    print(f"{count} starts, {different} with findings")
    return 1 if different else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20_000, help="variants to read")
    parser.add_argument("--seed", type=int, default=0, help="which variants")
    parser.add_argument("--variant", type=int, help="read this one only, in this process")
    parser.add_argument("--starts", action="store_true", help="start flows, in this process")
    parser.add_argument("--work", type=int, nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(*args.work)
        return 0
    if args.variant is not None:
        work(args.variant, args.variant + 1)
        return 0
    if args.starts:
        return start(args.seed * SPREAD, args.rounds)
    campaign = run_campaign(args.seed * SPREAD, args.rounds, told=tell)
    print(f"{campaign.variants} variants read, {len(campaign.findings)} with findings")
    return 1 if campaign.findings else 0


if __name__ == "__main__":
    sys.exit(main())

"""``python -m godwit_lab.experiments.calibration measure|fit|draw``."""

from __future__ import annotations

import argparse
from pathlib import Path

from godwit_lab.experiments import calibration


def main() -> None:
    parser = argparse.ArgumentParser(
        description=calibration.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=["measure", "fit", "draw"])
    parser.add_argument("--real", type=Path, default=Path("artifacts/calibration.json"))
    parser.add_argument("--figure", type=Path, default=Path("artifacts/calibration.png"))
    given = parser.parse_args()
    if given.step == "measure":
        from godwit_lab.experiments.calibration.measure import measure

        measure(given.real)
    elif given.step == "draw":
        from godwit_lab.experiments.calibration.fit import draw
        from godwit_lab.simulator import calibration as kept

        draw(kept(), given.figure)
    else:
        from godwit_lab.experiments.calibration.fit import fit

        print(fit(given.real, drawing=given.figure))


if __name__ == "__main__":
    main()

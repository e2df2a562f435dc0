"""How often tests draw: as often as each change can wait for, or more before a release."""

from __future__ import annotations

import os


def rounds(usual: int, long: int) -> int:
    """Return the number of rounds, which is `long` where ``GODWIT_LONG`` is set."""
    return long if "GODWIT_LONG" in os.environ else usual

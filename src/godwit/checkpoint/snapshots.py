"""Which key groups are worth a snapshot now.

Problem: a chain gets longer with every epoch, and so does the time to read it; a snapshot makes it
short, but rewrites state that did not change.

The rule: a key group is due once reading its changelog costs `growth` times what reading its
snapshot costs.  Rewriting then costs at most ``1 + 1 / growth`` times what was written to the
changelog since the last snapshot, so over any time the state is rewritten a constant factor of
what was changed, however large it is and whatever the pattern of changes (the argument of
logarithmic methods and LSM trees; O'Neil et al., Acta Informatica 1996).  Since opening a segment
costs something however short it is, each counts as `segment_overhead_bytes` more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from godwit.checkpoint.chains import Chains
    from godwit.checkpoint.records import StateId

__all__ = ["DEFAULT_SEGMENT_OVERHEAD_BYTES", "choose_snapshots"]

DEFAULT_SEGMENT_OVERHEAD_BYTES: Final = 4096
DEFAULT_MIN_CHANGELOG_BYTES: Final = 64 * 1024


def choose_snapshots(
    chains: Chains,
    state: StateId,
    key_groups: Sequence[int] | npt.NDArray[np.integer],
    *,
    budget_bytes: int,
    growth: float = 1.0,
    segment_overhead_bytes: int = DEFAULT_SEGMENT_OVERHEAD_BYTES,
    min_changelog_bytes: int = DEFAULT_MIN_CHANGELOG_BYTES,
) -> list[int]:
    """Choose key groups of one state to write a snapshot of in the next epoch.

    `budget_bytes`: how much to write at most. The most urgent key group is chosen even if it alone
    is larger, so that it is not put off for ever; a budget of 0 chooses nothing.
    `growth`: how far a changelog may outgrow its snapshot, as a ratio.
    `segment_overhead_bytes`: what opening a segment costs, in bytes that could be read in the same
    time.
    Returns key groups, the one whose changelog has outgrown its snapshot the most first; ties in
    order of key groups.
    """
    chosen_from = np.zeros(chains.num_key_groups, np.bool_)
    chosen_from[key_groups] = True
    candidates = np.flatnonzero(chosen_from)
    if budget_bytes <= 0 or not len(candidates):
        return []
    changelog_bytes = chains.changelog_bytes(state)[candidates]
    snapshot_bytes = chains.snapshot_bytes(state)[candidates]
    read_bytes = changelog_bytes + segment_overhead_bytes * chains.num_segments(state)[candidates]
    ratio = read_bytes / np.maximum(snapshot_bytes, 1)
    due = (read_bytes >= min_changelog_bytes) & (ratio >= growth)
    order = np.flatnonzero(due)[np.argsort(-ratio[due], kind="stable")]
    # A snapshot has at most the entries of the old one and of the changelog.
    written_bytes = np.cumsum((snapshot_bytes + changelog_bytes)[order])
    chosen = order[: max(1, int(np.searchsorted(written_bytes, budget_bytes, side="right")))]
    return [int(key_group) for key_group in candidates[chosen]]

"""The physical plan: which operators make a component.

Operators are logical: the user named them, and state is theirs.  Components are physical: operators
of one component share an assignment, and hence where their state is, what moves together and what
waits together.  Which operators these are may change from one epoch to the next, while no state
changes with it; so it is a version of its own beside the flow's, written once and named by every
commit record that ran under it (`godwit.checkpoint.records`).
"""

from __future__ import annotations

import msgspec

__all__ = ["ComponentPlan", "PhysicalPlan"]


class ComponentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One component."""

    name: str  # unique within the plan
    operators: tuple[str, ...]  # names of its operators, at least one


class PhysicalPlan(msgspec.Struct, frozen=True, kw_only=True):
    """All components of a flow."""

    components: tuple[ComponentPlan, ...] = ()  # in the order in which they run

"""What somebody decided by hand, and for how long the loop leaves it alone.

Problem: a user who migrates, drains or scales knows something that the statistics do not; a loop
that took it back a period later would be at war with its owner.

The idea: nobody has to tell.  A migration or a drain in the conductor's view that the controller
did not ask for is somebody's decision; it is respected for a stated time after it was last under
way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from godwit.migration import ProtocolView

__all__ = ["Hands"]


class Hands:
    """What was decided by hand lately.

    respect_s: For how long it is left alone.
    """

    def __init__(self, respect_s: float) -> None:
        self._respect_s = respect_s
        self._components: dict[str, float] = {}
        self._executors: set[str] = set()
        self._scaling = float("-inf")

    def look(
        self,
        view: ProtocolView,
        now_s: float,
        *,
        own_migrations: Collection[str],
        own_draining: Collection[str],
    ) -> Mapping[str, float]:
        """Find what the controller did not ask for; return what is new → until when it holds."""
        until_s, new = now_s + self._respect_s, {}
        for name, component in view.components.items():
            if component.migration is not None and component.migration not in own_migrations:
                if self._components.get(name, now_s) <= now_s:
                    new[f"migration of {name}"] = until_s
                self._components[name] = until_s
        drained = view.draining - set(own_draining)
        for executor in sorted(drained - self._executors):
            new[f"draining of {executor}"] = until_s
        self._executors = set(drained)
        return new

    def scaled(self, now_s: float) -> Mapping[str, float]:
        """Note that somebody set the number of executors."""
        self._scaling = now_s + self._respect_s
        return {"scaling": self._scaling}

    def recall(self, what: str, until_s: float, now_s: float) -> None:
        """Respect what an earlier controller respected, whose clock may have been ahead."""
        until_s = min(until_s, now_s + self._respect_s)
        if what == "scaling":
            self._scaling = max(self._scaling, until_s)
        elif what.startswith("migration of "):
            name = what.removeprefix("migration of ")
            self._components[name] = max(self._components.get(name, until_s), until_s)

    def hold_component(self, name: str, now_s: float) -> bool:
        """Whether a component is to be left alone."""
        return self._components.get(name, now_s) > now_s

    def hold_scaling(self, now_s: float) -> bool:
        """Whether the number of executors is to be left alone."""
        return self._scaling > now_s

    def held(self, now_s: float) -> Mapping[str, float]:
        """Return what is left alone now → for how many seconds."""
        found = {f"migration of {n}": t - now_s for n, t in self._components.items() if t > now_s}
        if self.hold_scaling(now_s):
            found["scaling"] = self._scaling - now_s
        return found

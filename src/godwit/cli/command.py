"""A command of `godwit`, before its module is imported."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Description of a command; another package adds one by an entry point of this type.

    The group is ``godwit.commands``, and the entry point's name is the command's.
    """

    module: str  # whose `add_<command>_arguments` configures the command's parser
    purpose: str  # one line for ``godwit --help``
    needs: str = ""  # a package without which it cannot run
    install: str = ""  # what to install then, as pip takes it

    @property
    def missing(self) -> str:
        """Package to install before the command can run; empty if nothing is missing."""
        return self.install if self.needs and find_spec(self.needs) is None else ""

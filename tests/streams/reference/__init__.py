"""Reference results of flows over event time, in plain Python over lists of rows.

Nothing of the product is used here. A row is a dict; moments are microseconds since 1970.
"""

from tests.streams.reference.meeting import Duplicates, Interval, Newest
from tests.streams.reference.streams import InputClock, Node, Operator, Source, Union
from tests.streams.reference.windows import LastRows, Session, Window

__all__ = [
    "Duplicates",
    "InputClock",
    "Interval",
    "LastRows",
    "Newest",
    "Node",
    "Operator",
    "Session",
    "Source",
    "Union",
    "Window",
]

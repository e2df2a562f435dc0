"""Settings of policies about operators: which to fuse, layouts of windows, hot keys."""

from __future__ import annotations

from dataclasses import dataclass

from godwit.control.fusing import Fusion
from godwit.control.spreading import Spreading
from godwit.control.windows import Splitting
from godwit.model.errors import InvalidFlowError
from godwit.model.frames import user_class
from godwit.model.naming import type_name
from godwit.runtime.ports import AdaptationSettings


@user_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptation(AdaptationSettings):
    """Settings for automatic changes of a running query's plan: fusing, window layouts, hot keys.

    Pass it as ``flow.start(adaptation=...)``. `gw.Control` moves key groups and changes the number
    of executors; these settings change which operators run in the same tasks, and how the work of
    windows and hot keys is divided.

    Attributes
    ----------
    fusion
        Settings such as ``gw.control.Fusion()``: consecutive operators that send each other many
        rows are fused into one component (they run in the same tasks) while the query runs, and are
        separated again if the rows become few. Operators that you named in ``components=`` or in
        ``query.components.regroup`` stay as they are. ``None``: operators are fused only on
        request.
    splitting
        Settings such as ``gw.control.Splitting(max_latency="500 milliseconds")`` for choosing the
        layout (one-phase or two-phase) of windows with ``consolidate="measured"``. ``None``: the
        defaults of ``gw.control.Splitting()``.
    spreading
        Settings such as ``gw.control.Spreading()``: the rows of hot keys are divided among several
        lanes while the query runs, and sent to one lane again when the keys are no longer hot; for
        joins with ``spread=`` and ``process`` with ``merge=``. ``None``: keys are divided only by
        ``query.hot_keys.spread``.

    Raises
    ------
    InvalidFlowError
        If a setting has a wrong type.

    Examples
    --------
    >>> gw.control.Adaptation(spreading=gw.control.Spreading()).spreading.epochs
    8
    """

    fusion: Fusion | None = None
    splitting: Splitting | None = None
    spreading: Spreading | None = None

    def __post_init__(self) -> None:
        for name, kind, example in (
            ("fusion", Fusion, 'by="traffic"'),
            ("splitting", Splitting, 'max_latency="500 milliseconds"'),
            ("spreading", Spreading, ""),
        ):
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise InvalidFlowError(
                    f"The setting {name} of adaptation is of type {type_name(value)}.",
                    remedy=f"Give a gw.control.{kind.__name__}, as in "
                    f"{name}=gw.control.{kind.__name__}({example}).",
                )

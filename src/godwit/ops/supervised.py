"""The application that `godwit run` supervises: its process, and its exit status.

``python -m godwit.ops.supervised app.py ARGUMENTS`` runs the program as ``python app.py ARGUMENTS``
does. Only the exit status after an error differs: `CANNOT_MEND` for errors that every further start
would raise again, `NOT_WANTED` after a stop on request.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any, Final

from godwit.model import errors
from godwit.model.log_lines import chosen_format, log_as

CANNOT_MEND: Final = 78  # EX_CONFIG of sysexits.h
NOT_WANTED: Final = 79
"""Status of a program that ends with an error after its queries were stopped on request."""

_LASTING: Final = (
    SyntaxError,
    ImportError,
    errors.InvalidFlowError,  # and `UnsupportedQueryError`
    errors.InvalidControlError,
    errors.InvalidPlanError,
    errors.InvalidProblemError,
    errors.PluginError,
    errors.CheckpointMismatchError,
    errors.CorruptCheckpointError,
    errors.ExecutorEnvironmentError,
    errors.StateEncodingError,
)


def exit_status(error: BaseException) -> int:
    """Return the exit status of a program that ends with an error."""
    return CANNOT_MEND if isinstance(error, _LASTING) else 1


def main(arguments: list[str]) -> int:
    """Run a program; return its exit status."""
    log_as(chosen_format())
    program, *_ = sys.argv[:] = arguments
    sys.path[0] = str(Path(program).resolve().parent)
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as leaving:
        if leaving.code not in {None, 0} and _is_stopped_on_request():
            if isinstance(leaving.code, str):
                print(leaving.code, file=sys.stderr)
            return NOT_WANTED
        raise
    except Exception as error:  # noqa: BLE001  any may end a program
        sys.excepthook(type(error), error, error.__traceback__)
        return NOT_WANTED if _is_stopped_on_request() else exit_status(error)
    return 0


def _is_stopped_on_request() -> bool:
    """Return whether the program's queries were stopped on request, and none is wanted."""
    requests: Any = sys.modules.get("godwit.runtime.lifecycle")  # a program may start no query
    return requests is not None and bool(requests.stopped_on_request())


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

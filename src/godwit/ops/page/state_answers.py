"""Look-ups in the state of a query over HTTP, beside its live page.

::

    GET /state/OPERATOR?key=JSON               entries of one key
    GET /state/OPERATOR?prefix=JSON&limit=100  entries of all keys, or of those that begin so
    GET /states?OPERATOR=JSON&OPERATOR=JSON    one key of each of several operators, at one epoch

Invariant: all rows of an answer are of one committed epoch, which the answer names, in its body or
metadata and in a header.  An answer from the checkpoint alone, whose query may be ahead by now,
says so (`CHECKPOINT`).  Values have the form of `gw.formats.json`, in keys and in answers.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from urllib.parse import parse_qsl

import pyarrow as pa

from godwit.connect.formats.message_formats import JsonMessages, UnwritableError
from godwit.connect.formats.text_values import load_json
from godwit.model.errors import CheckpointError, GodwitError, InvalidFlowError, InvalidInputError
from godwit.ops.query_state import EPOCH, QueryStates
from godwit.ops.state_view import NoStateError, SeveralStatesError, UnknownStateError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from wsgiref.types import WSGIEnvironment

_ARROW: Final = "application/vnd.apache.arrow.stream"
_JSON: Final = "application/json"
_LIMIT: Final = 1000  # rows of a scan, unless the request sets another limit
_MAX_LIMIT: Final = 100_000
"""Max. rows of a scan, which is answered from memory."""
MAX_PARAMETERS: Final = 64
"""Parameters of a request: operators, token and epoch."""
_PARAMETERS: Final = frozenset({"state", "key", "prefix", "limit", "format", "epoch", "token"})
_BAD: Final = "400 Bad Request"
CHECKPOINT: Final = "checkpoint"
"""Origin of answers from only the checkpoint, which may be behind a running query."""
_NOT_FINITE: Final = ("NaN", "Infinity", "-Infinity")
"""Keys that JSON has no numbers for, as text."""


class StateAnswer(NamedTuple):
    """Answer to a request."""

    status: str
    body: bytes
    kind: str = _JSON  # content type
    headers: tuple[tuple[str, str], ...] = ()


class _RefusedError(Exception):
    """A request that is not answered with rows: its status, and the reason."""

    def __init__(self, status: str, why: str, *, epoch: int | None = None) -> None:
        super().__init__(why)
        self.status, self.why, self.epoch = status, why, epoch


class AskedState(Protocol):
    """State of an operator, of a running query or of a checkpoint."""

    @property
    def keys(self) -> pa.Schema:
        """Key columns."""

    def get_many(self, keys: Sequence[Any]) -> pa.Table:
        """Return the entries of keys; the table's metadata has the epoch."""

    def scan(self, prefix: Any = (), *, limit: int | None = None) -> pa.Table:
        """Return the entries of all keys, or of those with a prefix."""

    def close(self) -> None:
        """Delete copies."""


class AskedStates(Protocol):
    """States of several operators, whose answers are from one epoch."""

    @property
    def epoch(self) -> int:
        """Epoch of the last answer."""

    def get_tables(self, keys: Mapping[str, Any]) -> dict[str, pa.Table]:
        """Return the entries of one key of each operator."""


class StateAnswers:
    """Answers requests for the states of a query.

    `state_of`: returns the state of an operator. `together`: puts several together. `origin`: where
    answers are from, if not from the running query.
    """

    def __init__(
        self,
        state_of: Callable[..., AskedState],
        together: Callable[[Mapping[str, Any]], AskedStates] = QueryStates,
        *,
        origin: str = "",
    ) -> None:
        self._state_of, self._max_concurrent, self._origin = state_of, together, origin
        self._states: dict[tuple[str, str | None], AskedState] = {}
        self._lock = threading.Lock()

    def answer(self, environ: WSGIEnvironment) -> StateAnswer:
        """Answer a request; never raises."""
        epoch = None
        try:
            return self._answer_or_raise(environ)
        except _RefusedError as refused:
            status, why, epoch = refused.status, refused.why, refused.epoch
        except GodwitError as error:
            status, why = _status_of(error), _text_of(error)
        return refusal(status, why, epoch=epoch, headers=self._answer_headers())

    def close(self) -> None:
        """Delete the copies of key groups."""
        with self._lock:
            states, self._states = list(self._states.values()), {}
        for state in states:
            state.close()

    def _answer_or_raise(self, environ: WSGIEnvironment) -> StateAnswer:
        """Answer a request, or raise."""
        path = environ.get("PATH_INFO", "").encode("latin-1").decode("utf-8", "replace")
        parameters = _url_parameters(environ.get("QUERY_STRING", ""))
        if path == "/states":
            return self._of_several(parameters)
        request_parameters: dict[str, str] = {}
        for name, value in parameters:
            if name not in _PARAMETERS or name in request_parameters:
                raise _RefusedError(
                    _BAD,
                    f"The parameter {name!r} is unknown, or duplicated. Parameters are "
                    f"{', '.join(sorted(_PARAMETERS))}.",
                )
            request_parameters[name] = value
        if "key" in request_parameters and request_parameters.keys() & {"prefix", "limit"}:
            raise _RefusedError(_BAD, "Give either a key, or a prefix and a limit.")
        as_arrow = _wants_arrow(request_parameters.get("format"), environ.get("HTTP_ACCEPT", ""))
        operator = path.removeprefix("/state/")
        state = self._asked_state(operator, request_parameters.get("state"))
        if "key" in request_parameters:
            table, has_more = (
                state.get_many([_key_from_json(state, request_parameters["key"])]),
                False,
            )
        else:
            limit = _scan_limit(request_parameters.get("limit"))
            prefix = (
                _key_prefix_values(state, request_parameters["prefix"])
                if "prefix" in request_parameters
                else ()
            )
            table = state.scan(prefix, limit=limit + 1)
            table, has_more = table.slice(0, limit), table.num_rows > limit
        self._remember_state(operator, request_parameters.get("state"), state)
        epoch = int(table.schema.metadata[EPOCH])
        _check_epoch(request_parameters.get("epoch"), epoch)
        if "key" in request_parameters and not table.num_rows:
            reason = f"The key {request_parameters['key']} has no state in operator {operator!r}."
            raise _RefusedError("404 Not Found", reason, epoch=epoch)
        headers = self._answer_headers(epoch, ("Godwit-More", str(has_more).lower()))
        if as_arrow:
            return StateAnswer("200 OK", _rows_as_arrow(table), _ARROW, headers)
        begin = self._body_begin(epoch)
        body = f'{begin},"more":{str(has_more).lower()},"rows":{_rows_as_json(table)}}}\n'
        return StateAnswer("200 OK", body.encode(), headers=headers)

    def _of_several(self, parameters: list[tuple[str, str]]) -> StateAnswer:
        """Answer a request for one key of each of several operators."""
        asked = dict(parameters)
        token, epoch = asked.pop("token", None), asked.pop("epoch", None)
        del token
        if not asked or len(dict(parameters)) < len(parameters):
            raise _RefusedError(
                _BAD, "Give each operator once, with a key, as in /states?by_plane=%22N1%22."
            )
        states = {name: self._asked_state(name, None) for name in asked}
        several = self._max_concurrent(states)
        keys = {name: _key_from_json(state, asked[name]) for name, state in states.items()}
        tables = several.get_tables(keys)
        for name, state in states.items():
            self._remember_state(name, None, state)
        _check_epoch(epoch, several.epoch)
        bodies = ",".join(f"{json.dumps(n)}:{_rows_as_json(table)}" for n, table in tables.items())
        body = f'{self._body_begin(several.epoch)},"states":{{{bodies}}}}}\n'
        return StateAnswer("200 OK", body.encode(), headers=self._answer_headers(several.epoch))

    def _body_begin(self, epoch: int) -> str:
        """Return the beginning of a body in JSON: the epoch, and where the answer is from."""
        origin = f',"from":{json.dumps(self._origin)}' if self._origin else ""
        return f'{{"epoch":{epoch}{origin}'

    def _answer_headers(
        self, epoch: int | None = None, *more: tuple[str, str]
    ) -> tuple[tuple[str, str], ...]:
        """Return the headers of an answer."""
        of_epoch = () if epoch is None else (("Godwit-Epoch", str(epoch)),)
        origin = (("Godwit-From", self._origin),) if self._origin else ()
        return (*of_epoch, *more, *origin)

    def _asked_state(self, operator: str, state: str | None) -> AskedState:
        """Return the state of an operator, whose copies are kept from one request to the next."""
        with self._lock:
            known = self._states.get((operator, state))
        return self._state_of(operator, state) if known is None else known

    def _remember_state(self, operator: str, state: str | None, answered: AskedState) -> None:
        """Keep a state that could answer; names that do not exist are not kept."""
        with self._lock:
            self._states.setdefault((operator, state), answered)


def refusal(
    status: str,
    reason: str,
    *,
    epoch: int | None = None,
    headers: tuple[tuple[str, str], ...] = (),
) -> StateAnswer:
    """Return the answer with an error; `epoch`: the one that it applies to."""
    epoch_field: Mapping[str, Any] = {} if epoch is None else {"epoch": epoch}
    body = json.dumps({**epoch_field, "error": reason}, ensure_ascii=False)
    if epoch is not None:
        headers = (*headers, ("Godwit-Epoch", str(epoch)))
    if status.startswith("503"):
        headers = (*headers, ("Retry-After", "1"))
    if status.startswith("401"):
        headers = (*headers, ("WWW-Authenticate", 'Bearer realm="godwit"'))
    return StateAnswer(status, f"{body}\n".encode(), headers=headers)


def _status_of(error: GodwitError) -> str:
    """Return the status of the answer to an error."""
    if isinstance(error, InvalidFlowError | UnknownStateError | NoStateError):
        return "404 Not Found"
    if isinstance(error, InvalidInputError | SeveralStatesError):
        return _BAD
    if isinstance(error, CheckpointError):  # such as of files that were collected
        return "503 Service Unavailable"
    return "500 Internal Server Error"  # such as of a user's function that merges parts


def _text_of(error: GodwitError) -> str:
    """Return an error's message, with its remedy."""
    return str(error)


def _url_parameters(query: str) -> list[tuple[str, str]]:
    """Return the parameters of a URL."""
    try:
        return parse_qsl(
            query,
            keep_blank_values=True,
            errors="strict",
            max_num_fields=MAX_PARAMETERS,
        )
    except ValueError as error:
        raise _RefusedError(_BAD, f"The parameters cannot be read: {error}.") from error


def _wants_arrow(asked: str | None, accept: str) -> bool:
    """Return whether the answer is a stream of Arrow, by parameter or by header."""
    if asked is None:
        return _ARROW in accept
    if asked not in {"json", "arrow"}:
        raise _RefusedError(_BAD, f"The format {asked!r} is unknown. Formats are json and arrow.")
    return asked == "arrow"


def _whole_number(name: str, text: str, maximum: int) -> int:
    """Return a whole number in a parameter."""
    if not (text.isascii() and text.isdigit() and len(text) <= 18 and int(text) <= maximum):
        raise _RefusedError(_BAD, f"The {name} {text[:50]!r} is not a number from 0 to {maximum}.")
    return int(text)


def _scan_limit(text: str | None) -> int:
    """Return the maximum number of rows of a scan."""
    return _LIMIT if text is None else _whole_number("limit", text, _MAX_LIMIT)


def _check_epoch(asked: str | None, epoch: int) -> None:
    """Raise if an answer is not from the requested epoch."""
    if asked is not None and _whole_number("epoch", asked, 2**59) != epoch:
        raise _RefusedError(
            "409 Conflict",
            f"The last committed epoch is {epoch}, not {asked}. Request all states again.",
            epoch=epoch,
        )


def _json_value(text: str) -> Any:
    """Return a parameter's JSON; other text is a string."""
    try:
        return load_json(text)
    except (ValueError, RecursionError):
        return text


def _key_from_json(state: AskedState, text: str) -> Any:
    """Return a key, as `QueryState.get` takes it, of its JSON: a value, an array or an object."""
    value, names = _json_value(text), state.keys.names
    if isinstance(value, dict):
        if value.keys() != {*names}:
            raise _RefusedError(
                _BAD,
                f"The key {text[:100]} does not have exactly the key columns {', '.join(names)}.",
            )
        return _with_key_types(state, [value[name] for name in names])
    values = value if isinstance(value, list) else [value]
    if len(values) != len(names):
        raise _RefusedError(
            _BAD,
            f"The key {text[:100]} does not have one value for each of the key columns "
            f"{', '.join(names)}: give an array in this order, or an object.",
        )
    return _with_key_types(state, values)


def _key_prefix_values(state: AskedState, text: str) -> tuple[Any, ...]:
    """Return the values that the first key columns have."""
    value = _json_value(text)
    return _with_key_types(state, value if isinstance(value, list) else [value])


def _with_key_types(state: AskedState, values: list[Any]) -> tuple[Any, ...]:
    """Return values of JSON with the types of the first key columns."""
    if len(values) > len(state.keys):
        raise _RefusedError(
            _BAD, f"There are more values than key columns: {', '.join(state.keys.names)}."
        )
    typed: list[Any] = []
    for value, field in zip(values, state.keys, strict=False):
        if pa.types.is_floating(field.type) and value in _NOT_FINITE:
            typed.append(float(value))
            continue
        message = json.dumps({field.name: value}).encode()
        try:
            (column,) = JsonMessages(pa.schema([field])).columns([message], pa.schema([field]))
            typed.append(column[0].as_py())
        except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
            raise _RefusedError(
                _BAD,
                f"{json.dumps(value)[:100]} is not a value of key column {field.name!r}, of type "
                f"{field.type}, in JSON: {error}.",
            ) from error
    return tuple(typed)


def _rows_as_json(table: pa.Table) -> str:
    """Return rows as a JSON array of objects; raise if a value cannot be written as JSON."""
    encode = JsonMessages(None).encode
    try:
        rows = [row for batch in table.to_batches() for row in encode(batch)]
    except UnwritableError as error:  # such as the year 10000
        raise _RefusedError(
            "406 Not Acceptable",
            f"A row has a value that cannot be written as JSON: {error}. Use /state/ with "
            "format=arrow.",
            epoch=int(table.schema.metadata[EPOCH]),
        ) from error
    return f"[{','.join((row or b'null').decode() for row in rows)}]"


def _rows_as_arrow(table: pa.Table) -> bytes:
    """Return rows as a stream of Arrow."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())

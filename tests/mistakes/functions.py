"""Mistakes in functions for ``process``: signatures, rows, state, timers, what is emitted."""

from __future__ import annotations

from tests.mistakes.mistake import Mistake

_M = Mistake


def _rows(body: str, what: str, where: str, fix: str, options: str = "") -> Mistake:
    """Return the mistake of a function with this body, which only its rows can tell."""
    code = f"def sums(key, rows, state):\n    {body}\nprocess(sums{options})"
    return Mistake(code, what, where, fix, by_rows=True)


SIGNATURES = (
    _M(
        "process(lambda key, rows: [])", "too many", "function(key, rows, state)", "three arguments"
    ),
    _M(
        "process(lambda rows, key, state: [])",
        "'rows' would be",
        "process_by_k",
        "(key, rows, state)",
    ),
    _M(
        "process(print, state=gw.ValueState(int, ttl=3600))",
        "type int",
        "time-to-live of operator",
        '"10 minutes"',
    ),
    _M("process(lambda key, rows, state: [], state=0)", "but 0", "process_by_k", "state=dict"),
    _M("process(lambda key, rows, state: [], output=None)", "no output", "process_by_k", "output="),
    _M(
        'process(lambda key, rows, state: [], output="k string, n lnog")',
        *("'lnog', which is not known", "column 'n'", "Did you mean 'long'?"),
    ),
    _M(
        'process(lambda key, rows, state: [], output="k string n long")',
        *("cannot be read at 'n long'", "character 10", "names and types in pairs"),
    ),
    _M(
        'process(print, state={"seen": gw.MapState(list, int)})',
        *("keys of type <class 'list'>", "State 'seen'", "Use str, int"),
    ),
    _M(
        'process(lambda key, rows, state: [], timers=gw.types.OnTimer(print, clock="event_time"))',
        *("clock='event_time'", "process_by_k", "Did you mean 'event'?"),
    ),
    _M(
        'process(lambda key, rows, state: [], timers="processing", on_timer=print)',
        *("no argument 'on_timer'", "process", "Use timers=gw.types.OnTimer(function"),
    ),
    _M(
        'process(lambda key, rows, state: [], timers="processing")',
        *("timers='processing'", "process_by_k", "gw.types.OnTimer(remind, clock='processing')"),
    ),
    _M(
        'process(print, states={"seen": gw.ValueState(int)})',
        *("no argument 'states'", "process", 'Use state={"total": gw.ValueState(int)}.'),
    ),
    _M(
        'process(print, state=int, ttl="1 day")',
        *("no argument 'ttl'", "process", "state=gw.ValueState(ttl=...)"),
    ),
    _M(
        "process(print, state=int, state_classes=[int])",
        *("no argument 'state_classes'", "process", "state=gw.ValueState(..., classes=...)"),
    ),
    _M(
        'process(print, state=int, event_time="ts")',
        *("no argument 'event_time'", "process", "output=gw.types.Output(event_time=...)"),
    ),
    _M(
        'process(print, state=int, formerly="other")',
        *("no argument 'formerly'", "process", "name=gw.types.Identity(formerly=...)"),
    ),
    _M(
        "def sums(key, rows, state):\n    state = {'n': 1}\n    return []\n"
        "process(sums, state=dict)",
        *("changes no state", "'sums' assigns its argument 'state'", "Change it in place"),
    ),
)

ROWS = (
    _M(
        "def passes_on(function):\n    return lambda *arguments: function(*arguments)\n"
        "process(passes_on(lambda key, rows: []))",
        *("takes 2 positional arguments but 3 were given", "process_by_k"),
        "called as function(key, rows, state), and takes *arguments",
        by_rows=True,
    ),
    _M(
        "def passes_on(function):\n    return lambda *arguments: function(*arguments)\n"
        "hourly = keyed.window(gw.tumbling('1 hour'))\n"
        "play(hourly.process(passes_on(lambda key, rows: []), output='k string'))",
        *("takes 2 positional arguments but 3 were given", "process_tumbling"),
        "called as function(key, rows, window), and takes *arguments",
        by_rows=True,
    ),
    _M(
        "def passes_on(function):\n    return lambda *arguments: function(*arguments)\n"
        "counts = keyed.compute(n=gw.count())\n"
        "play(counts.map(passes_on(lambda: None), schema='k string, n long'))",
        *("takes 0 positional arguments but 1 was given", "orders_n_by_k"),
        "called as map(rows), and takes *arguments",
        by_rows=True,
    ),
    _rows("return [(key[0], state)]", "State(0) in column 'n'", "sums_by_k", "use its .value"),
    _rows("state.vlaue = 1", "no attribute 'vlaue'", "'sums' of operator", "state.value"),
    _rows("yield key[1], 1", "index out of range", "'sums' of operator", "columns of key_by"),
    _rows(
        "state.value += np.int64(1)",
        *("declared as int (say int(x) or x.item())", "sums_by_k", "Keep values of the declared"),
    ),
    _rows(
        "state['rows'] = list(rows)",
        *("a type that state cannot hold (say tuple(x), or x._asdict()", "sums_by_k"),
        *("Keep values of the declared types", ", state=dict"),
    ),
    _M(
        "async def look_up():\n    return []\n"
        "async def sums(key, rows, state):\n    return look_up()\nprocess(sums)",
        *("coroutine", "'sums' of operator", "write await before the call"),
        by_rows=True,
    ),
    _rows("yield key[0], 1, 2", "a row of 3 values", "orders_sums_by_k", "k: string, n: int64"),
    _rows("yield key[0], 'x'", "'x' in column 'n', which is int64", "sums_by_k", "k: string"),
    _rows("yield key, 1", "('a',) in column 'k'", "orders_sums_by_k", "its value is key[0]"),
    _rows("return {'k': key[0], 'n': 1}", "instead of a row", "sums_by_k", "return [{...}]"),
    _rows(
        "return pd.DataFrame({'k': [key[0]], 'n': [1]})",
        *("instead of a row", "orders_sums_by_k", 'to_dict("records")'),
    ),
    _rows("return pa.table({'k': ['a']})", "instead of a row", "sums_by_k", "to_pylist()"),
    _rows("return key[0], 1", "instead of a row", "sums_by_k", "return [(k, n)]"),
    _rows("yield {'k': key[0], 'm': 1}", "without 'n'", "orders_sums_by_k", "n: int64"),
    _rows("state += 1; yield key[0], 1", "holds a value", "'sums' of operator", ".value"),
    _rows("yield key[0], list(rows)[0]['v']", "indices must be integers", "'sums' of", "row.name"),
    _rows("yield key[0], [r.w for r in rows][0]", "no column 'w'. It has", "'sums'", "Correct"),
    _rows("yield key.k, 1", "no attribute 'k'", "'sums' of operator", "its value is key[0]"),
    _rows(
        "list(rows)[0].v = 2; yield key[0], 1", "can't set", "'sums' of operator", "row._replace("
    ),
    _rows("yield key[0], state['n']", "KeyError", "'sums'", "state.get('n', 0)", ", state=dict"),
    _rows(
        "state['n'] = np.float64(1)",
        *(
            "of class numpy.float64, a type that state cannot hold (say float(x)",
            "sums_by_k",
        ),
        *("Keep values of the declared types", ", state=dict"),
    ),
    _rows(
        "state['at'] = pd.Timestamp(0)",
        *("a type that state cannot hold (say x.to_pydatetime())", "sums_by_k"),
        *("Keep values of the declared types", ", state=dict"),
    ),
    _rows("rows.timers.set(5)", "no timers: declare them", "'sums' of", "Correct the function"),
    _M(
        "async def look_up():\n    return 1\n"
        "def sums(key, rows, state):\n    yield key[0], look_up()\nprocess(sums)",
        *("coroutine", "column 'n'", "write await before the call"),
        by_rows=True,
    ),
)

MISTAKES = (*SIGNATURES, *ROWS)

"""Mistakes in tests of flows, in the controller's settings, and on the command line."""

from __future__ import annotations

from tests.mistakes.mistake import Mistake

_M = Mistake

TESTS = (
    _M('gw.testing.run(counts(), {"order": []})', "no source 'order'", "flow", "mean 'orders'?"),
    _M(
        'gw.testing.run(counts(), {"orders": [{"kk": "a", "v": 1}]})',
        *("column 'kk', which the source does not have", "Row 0 of source 'orders'", "mean 'k'?"),
    ),
    _M(
        'gw.testing.run(counts(), {"orders": {"k": "a", "v": 1}})',
        *("type dict", "Source 'orders'", "Give a list of dicts"),
    ),
    _M(
        'gw.testing.run(counts(), {"orders": [{"k": "a", "v": "1"}]})',
        *("'1' in column 'v', whose type is int64", "Row 0 of source 'orders'", "of that type"),
    ),
    _M('gw.testing.run(counts(), [{"k": "a"}])', "type list", "Rows were", "{'orders': [...]}"),
    _M("gw.testing.run(keyed, {})", "type KeyedStream", "to be played", "Give a gw.Flow"),
    _M(
        'gw.testing.run(counts(), {"orders": []}).rows("outs")',
        *("no sink 'outs'", "Flow 'shop'", "Did you mean 'out'?"),
    ),
    _M('gw.testing.run(counts(), {"orders": []})["out"]', "brackets", "'out'", "run.rows('out')"),
    _M("gw.testing.cluster(counts()).advance(600)", "type int", "advance", '"10 minutes"'),
    _M("gw.testing.process(print, key='a', state=int)", "key='a'", "testing.process", "key={"),
)

CONTROL = (
    _M("gw.Control(scaling=lambda: 2)", "too many", "scaling(load)", "this one argument"),
    _M("gw.Control(period=5)", "no unit", "setting period", '"5 seconds"'),
    _M("gw.control.Cadence(respect=60)", "no unit", "setting respect", '"60 seconds"'),
    _M('gw.sinks.kafka("h:9092", "t", timeout=5)', "no unit", "timeout of", '"5 seconds"'),
    _M('gw.Control(planner="mlip")', "not a planner", "'mlip'", "Did you mean 'milp'?"),
    _M("gw.Control(scaling=2)", "scaling=2", "scaling model", 'gw.control.latency("2 seconds")'),
    _M(
        "gw.Control(scaling=gw.control.latency)",
        "gw.control.latency itself",
        "scaling model",
        "Call it",
    ),
    _M("gw.control.latency(2)", "is 2", "latency target", '"2 seconds"'),
    _M(
        "gw.Control(min_executors=4, max_executors=2)",
        "more than max_executors",
        "is 4",
        "min_executors ≤",
    ),
    _M("gw.Control(budget=5)", "is 5", "setting budget of the controller", "gw.control.Budget("),
    _M('gw.Control("milp")', "by position", "Control()", "Control(planner=...)"),
    _M("gw.control.Budget(moves=3)", "no argument 'moves'", "Budget", "Did you mean 'max_moves'?"),
)

COMMANDS = (
    _M('godwit("top", here + "/ck")', "not a checkpoint", "/ck'", "flow.start(checkpoint=...)"),
    _M('godwit("topp", here)', "invalid choice: 'topp'", "COMMAND", "Did you mean 'top'"),
    _M('godwit("checkpoint", "verfy", here)', "choice: 'verfy'", "ACTION", "mean 'verify'?"),
    _M('godwit("checkpoint", "verify", here)', "not a checkpoint", "has no file", "flow.start("),
    _M('godwit("checkpoint", "copy", here)', "are required: DST", "checkpoint copy", "--help"),
    _M('godwit("top", here, "--onec")', "--onec", "godwit top: error", "Did you mean '--once'"),
    _M('godwit("report", written(), "-o")', "expected one argument", "-o", "report --help"),
    _M('godwit("what-if", here, "--rate", "fast")', "not a positive", "'fast'", "--rate 10x"),
    _M('godwit("plan", "milp", here + "/p.json")', "cannot be read", "p.json", "that exists"),
)

MISTAKES = (*TESTS, *CONTROL, *COMMANDS)

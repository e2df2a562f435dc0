"""Time of a test without Spark: `python -m benchmarks.testing`.

Two figures: seconds from the start of a fresh Python to the first result, and for a thousand
epochs of ten rows.
"""

from __future__ import annotations

import subprocess
import sys
import time

import godwit as gw

FIRST = """
import time; began = time.perf_counter()
import godwit as gw
flow = gw.Flow("market", num_key_groups=8)
orders = flow.source("orders", gw.testing.stream("symbol string, price double"))
flow.sink("out", orders.key_by("symbol").compute(total=gw.sum("price")), gw.sinks.noop())
imported = time.perf_counter()
assert gw.testing.run(flow, {"orders": [{"symbol": "A", "price": 1.0}]}).rows("out").num_rows
print(f"{imported - began:.2f} {time.perf_counter() - began:.2f} {time.process_time():.2f}")
"""
EPOCHS, ROWS = 1_000, 10


def main() -> None:
    command = [sys.executable, "-c", FIRST]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    imported, first, cpu = out.split()
    print(f"first result: {first} s, of which the import and the flow {imported}; {cpu} s of CPU")
    flow = gw.Flow("market", num_key_groups=8)
    orders = flow.source("orders", gw.testing.stream("symbol string, price double"))
    totals = orders.key_by("symbol").compute(name="totals", total=gw.sum("price"))
    flow.sink("out", totals, gw.sinks.noop())
    rows = [{"symbol": f"S{n % 7}", "price": 1.0} for n in range(EPOCHS * ROWS)]
    began, cpu_began = time.perf_counter(), time.process_time()
    played = gw.testing.run(flow, {"orders": rows}, rows_per_epoch=ROWS)
    took, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    assert sum(row["total"] for row in played.current("out").to_pylist()) == len(rows)
    print(f"{EPOCHS} epochs of {ROWS} rows: {took:.1f} s; {cpu_s:.1f} s of CPU")


if __name__ == "__main__":
    main()

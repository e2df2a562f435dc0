"""Test a flow with pytest, without Spark: `pytest examples/testing_a_flow.py`, or run it."""

from __future__ import annotations

import godwit as gw


def build(flow: gw.Flow, rides: object) -> gw.Flow:
    """Count trips by zone and hour, and remember each taxi's last zone."""
    source = flow.source("rides", rides, event_time="ts", slack="5 minutes")  # type: ignore[arg-type]
    hourly = source.key_by("zone").window(gw.tumbling("1 hour"), name="hourly")
    flow.sink("hourly", hourly.compute(trips=gw.count(), fares=gw.sum("fare")), gw.sinks.noop())
    last = source.key_by("taxi").compute(name="last_zone", zone=gw.last("zone"))
    flow.sink("last_zone", last, gw.sinks.noop())
    return flow


def taxis() -> gw.Flow:
    """Build the flow over a stand-in for ``spark.readStream``."""
    columns = "taxi string, zone string, ts timestamp, fare double"
    return build(gw.Flow("taxis", num_key_groups=16), gw.testing.stream(columns))


def ride(taxi: str, zone: str, at: str, fare: float = 10.0) -> dict[str, object]:
    return {"taxi": taxi, "zone": zone, "ts": f"2024-05-01 {at}", "fare": fare}


def test_an_hour_comes_out_once_it_is_over() -> None:
    epochs = [
        [ride("t1", "north", "08:10"), ride("t2", "north", "08:50")],
        [ride("t1", "x", "09:06")],
    ]
    played = gw.testing.run(taxis(), {"rides": epochs})
    (north,) = played.rows("hourly").to_pylist()
    assert (north["zone"], north["trips"], north["fares"]) == ("north", 2, 20.0)


def test_nothing_is_lost_when_executors_die() -> None:
    with gw.testing.cluster(taxis(), executors=3) as run:
        for zone in ("north", "south", "east"):
            run.epoch({"rides": [ride(f"t{n}", zone, "08:10") for n in range(20)]})
            if len(run.executors) > 1:
                run.kill(next(iter(run.executors)))
        zones = {row["zone"] for row in run.current("last_zone").to_pylist()}
        counts = [row["trips"] for row in run.end_input()["hourly"].to_pylist()]
    assert (zones, counts) == ({"east"}, [20, 20, 20])


if __name__ == "__main__":
    test_an_hour_comes_out_once_it_is_over()
    test_nothing_is_lost_when_executors_die()
    print("both tests passed")

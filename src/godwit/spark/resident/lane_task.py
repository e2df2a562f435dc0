"""A resident lane's side: the task that works for the driver until the driver lets it go.

It does what the lane of a Spark job does (`godwit.engine.lane.lane.run_lane`), so it is as pure: it
reads a committed version, writes unreferenced files, and reports them.  It keeps only one thing
from one epoch to the next, as every Python process of an executor does: mapped tables of the local
store, which it checks again in every epoch, since other processes write them too.

It ends when the driver closes the channel, or dies.  A task that Spark retries finds no listener,
and ends too.
"""

from __future__ import annotations

import gc
import os
import pickle
import traceback
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from godwit.engine.lane.executor import current_executor
from godwit.engine.lane.lane import run_lane
from godwit.spark.resident.channel import ChannelError, connect
from godwit.spark.stages.local_parcels import remove_earlier

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from godwit.engine.lane.lane_flow import LaneFlow
    from godwit.engine.lane.messages import EpochInstruction, InstructionParts, LaneReport, Place
    from godwit.engine.lane.wire import Blob
    from godwit.spark.resident.channel import Channel

_HANDSHAKE_S = 10.0
_SETTLED_AFTER = 3
_settled: list[LaneFlow] = []  # for which this process has frozen its objects


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Address and secret at which the driver listens for the lanes of one job; picklable."""

    address: tuple[str, int]  # host and port of the driver
    secret: bytes  # of the job

    def __repr__(self) -> str:
        return f"Endpoint({self.address!r})"  # without the secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One level of one attempt at an epoch, for one lane."""

    attempt: int
    level: int
    place: int  # index into the instruction's places
    # with the first level of an attempt alone: the parts for the lane's executor
    instruction: InstructionParts | None
    payloads: list[bytes]  # rows for operators of the level
    bytes_at_most: int  # of rows that the lane may send on by way of the driver


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneAnswer:
    """A lane's answer to its work: rows for lanes of later levels and a report, or a refusal."""

    attempt: int
    level: int
    place: int
    blobs: Sequence[Blob] = ()
    report: bytes = b""  # encoded; empty where the work was refused
    refusal: str = ""  # why the epoch is better done by a Spark job


def serve_lanes(
    endpoint: Endpoint, task: int, place: Place, flow: Callable[[], LaneFlow]
) -> Iterator[bytes]:
    """Connect to the driver as task `task`, and run lanes until it closes the channel.

    The body of a Spark task; yields nothing. `place`: of one of its lanes. `flow`: returns the
    lanes' part of the flow.
    """
    # Before the task says that it is there. Arrow looks for pandas when it first makes an array.
    lane_flow, _ = flow(), pa.array([0])
    try:
        channel = connect(endpoint.address, endpoint.secret, task, handshake_s=_HANDSHAKE_S)
    except ChannelError:
        return  # the driver does not wait for this task any more
    try:
        channel.send(pickle.dumps((current_executor(place[0]), os.getpid())))
        serve(channel, lane_flow)
    except ChannelError:
        pass
    finally:
        channel.close()
    yield from ()


def serve(channel: Channel, flow: LaneFlow) -> None:
    """Run levels of epochs, one after the other, as the driver sends them.

    Ends by a `ChannelError`, when the channel closes.
    """
    instructions: dict[int, tuple[int, EpochInstruction]] = {}  # place → attempt, its instruction
    for num_rounds in count(1):
        works: Sequence[Work] = pickle.loads(channel.receive())  # noqa: S301  our own driver's
        answers = []
        for work in works:
            if work.instruction is not None:
                instructions[work.place] = work.attempt, work.instruction.for_place(work.place)
            attempt, instruction = instructions.get(work.place, (None, None))
            if attempt != work.attempt or instruction is None:
                raise ChannelError(f"attempt {work.attempt} came without its instruction")
            answers.append(_run_work(work, flow, instruction))
        channel.send(pickle.dumps(answers))
        if num_rounds == _SETTLED_AFTER and not any(
            instructions is flow for instructions in _settled
        ):
            # Once per process: lanes start again and again, and frozen objects are never
            # searched for cycles.
            _settled[:] = [flow]
            # Objects loaded by now stay: searches for cycles in the middle of epochs skip it.
            gc.collect()
            gc.freeze()


def _run_work(work: Work, flow: LaneFlow, instruction: EpochInstruction) -> LaneAnswer:
    """Run one level of an epoch on this lane, and return the answer for the driver.

    If the output is too large, or an error occurs, the answer is a refusal with the reason.
    """
    answer = partial(LaneAnswer, attempt=work.attempt, level=work.level, place=work.place)
    lane = run_lane(flow, instruction, work.level, work.place, work.payloads)
    try:
        if work.level == 1:
            remove_earlier(instruction)
        blobs, report = _run_lane_bounded(lane, work.bytes_at_most)
    except (Exception, SystemExit):  # noqa: BLE001  a Spark job will tell it as it tells all others
        return answer(refusal=traceback.format_exc(limit=-4))
    if report is None:
        return answer(refusal=f"it has more than {work.bytes_at_most} bytes of rows to send on")
    return answer(blobs=blobs, report=report.dumps())


def _run_lane_bounded(
    lane: Generator[Blob, None, LaneReport], bytes_at_most: int
) -> tuple[list[Blob], LaneReport | None]:
    """Run a lane to its end; return its payloads and report.

    The report is ``None`` if it sends more than `bytes_at_most` bytes.
    """
    blobs: list[Blob] = []
    sent = 0
    while True:
        try:
            blob: Any = next(lane)
        except StopIteration as end:
            return blobs, end.value
        sent += len(blob[1])
        if sent > bytes_at_most:
            lane.close()
            return [], None
        blobs.append(blob)

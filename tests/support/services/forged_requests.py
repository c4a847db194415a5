"""Catalogue of malformed, absurd and mutated requests for every method of the replay service.

A forgery that the contract refuses names the statuses that may answer it. A mutation may be harmless, so OK may answer
it too. The contract allows any client to send the valid plan of another session, a stream with the slot of a live
actor, and, in the learner's session, a commit without keys, which passes over all earlier batches. The catalogue
contains none of these. All hostile actors have slots from `FIRST_SLOT`.
"""

import functools
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
from google.protobuf.message import DecodeError

from penstock.errors import PenstockError
from penstock.rpc import methods
from penstock.rpc.service import Method
from penstock.types.block import Schema
from penstock.types.replay import SamplingPlan
from penstock.types.replay import Window as SentWindow
from penstock.v1 import block_pb2, replay_pb2
from penstock.wire.batches import decode_plan, encode_plan
from penstock.wire.block import split_final
from penstock.wire.schema import encode_schema
from penstock.wire.windows import encode_window

FIRST_SLOT, SLOTS = 1000, 4096
_MAX_32, _MAX_64 = 2**32 - 1, 2**64 - 1
_WINDOW_SEGMENTS = 2

QUICK: dict[str, float] = {
    "opening": 8.0,
    "schema": 3.0,
    "window": 14.0,
    "block": 6.0,
    "values": 3.0,
    "mutated_append": 10.0,
    "plan_numbers": 8.0,
    "request": 4.0,
    "mutated_plan": 4.0,
    "commit": 9.0,
    "mutated_commit": 6.0,
    "noise": 9.0,
    "truncated": 5.0,
    "status": 2.0,
}
"""Kinds of small requests with immediate answers, and their relative frequencies under load."""
SLOW: dict[str, float] = {"fields": 0.5, "oversized": 0.3, "left": 3.0, "silent": 0.3, "unread": 0.2}
"""Kinds of large requests, and of clients that leave, send nothing or read nothing, and their relative frequencies."""

_UNUSABLE = {
    "bool": (b"\x02", b"\xff"),
    "float32": tuple(struct.pack("<f", value) for value in (np.nan, -np.nan, np.inf, -np.inf)),
    "float64": tuple(struct.pack("<d", value) for value in (np.nan, -np.nan, np.inf, -np.inf)),
}
"""Values that the service refuses, by the type of a column."""

INVALID = frozenset({"INVALID_ARGUMENT"})
REFUSED = frozenset({"INVALID_ARGUMENT", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED", "UNAVAILABLE"})
ANY = REFUSED | {"OK"}

Open = replay_pb2.OpenAppend
Window = replay_pb2.Window
Block = block_pb2.Block
Append = replay_pb2.AppendSegmentsRequest
Sample = replay_pb2.SampleBatchesRequest
Commit = replay_pb2.CommitBatchRequest

T = TypeVar("T")


class Draws(Protocol):
    """Source of the choices in forgeries: a random generator, or Hypothesis."""

    def number(self, low: int, high: int) -> int:
        """Returns an integer from `low` to `high`, both included."""

    def one_of(self, *choices: T) -> T:
        """Returns one of the choices."""

    def bytes(self, size: int) -> bytes:
        """Returns any bytes of this size."""


@dataclass(frozen=True, slots=True)
class Forgery:
    """One call.

    Attributes:
        kind: Name of the fault.
        method: Method to call.
        messages: Serialised requests, in order.
        allowed: Statuses that may answer the call.
        ending: End of the stream after the last message. "done": half-closed; "open": left open until the service ends
            it; "drop": cancelled at once; "break": its connection is closed; "unread": its responses are not read for a
            while; "gzip": half-closed, and all messages are compressed.
    """

    kind: str
    method: Method
    messages: tuple[bytes, ...]
    allowed: frozenset[str]
    ending: str = "done"


class Forger:
    """Makes forgeries of every kind from a source of choices."""

    def __init__(
        self,
        draws: Draws,
        plan: SamplingPlan,
        *,
        capacity: int,
        schema: Schema,
        window: Callable[[int, int], SentWindow],
        first_incarnation: int = 1,
    ) -> None:
        """Makes the forger.

        Args:
            draws: Source of the choices.
            plan: The healthy learner's plan. A hostile client may use its session.
            capacity: Rows of the store.
            schema: Schema of the store.
            window: Valid first window of two segments for a slot and an incarnation.
            first_incarnation: Incarnation before that of the first forged actor.
        """
        self._number, self._one_of, self._bytes = draws.number, draws.one_of, draws.bytes
        self._plan, self._capacity = plan, capacity
        self._row, self._make_window = schema, window
        self._incarnation = first_incarnation
        self.makers: dict[str, Callable[[], Forgery]] = {name: getattr(self, f"_{name}") for name in (*QUICK, *SLOW)}

    # Actors

    def _opening(self) -> Forgery:
        wrong: tuple[str, frozenset[str], Callable[[Open], object]] = self._one_of(
            (
                "a slot out of range",
                INVALID,
                lambda opening: setattr(opening, "slot", self._number(4096, _MAX_32)),
            ),
            ("no segments", INVALID, lambda opening: setattr(opening, "window_segments", 0)),
            ("2^32 - 1 segments", INVALID, lambda opening: setattr(opening, "window_segments", _MAX_32)),
            ("no schema", INVALID, lambda opening: opening.ClearField("schema")),
            ("another schema", REFUSED, lambda opening: setattr(opening.schema, "unroll_length", 65)),
        )
        opening = self._open()
        wrong[2](opening)
        return Forgery(f"opening: {wrong[0]}", methods.APPEND_SEGMENTS, _opened(opening), wrong[1])

    def _schema(self) -> Forgery:
        dimensions = self._one_of(2, 64, 300, 3000, 100_000)
        column = _column()
        alike = [column, column]
        huge, flat = _column(shape=[_MAX_32] * dimensions), _column(shape=[0] * dimensions)
        long = _column(lead=_MAX_32)
        many = _many_columns(self._one_of(500, 20_000))
        kind, columns, steps = self._one_of(
            ("dimensions of 2^32 - 1", [huge], 1),
            ("dimensions of 0", [flat], 1),
            ("a lead of 2^32 - 1", [long], _MAX_32),
            ("2^32 - 1 steps", alike[:1], _MAX_32),
            ("no steps", alike[:1], 0),
            ("no columns", [], 64),
            ("two identical columns", alike, 64),
            ("an unknown type", [_column(data_type=77)], 64),
            ("an unknown extent", [_column(extent=-1)], 64),
            ("an invalid name", [_column(name="\x00 C" * 50)], 64),
            ("very many columns", many, 1),
        )
        opening = self._open()
        opening.schema.CopyFrom(block_pb2.Schema(unroll_length=steps, columns=columns))
        # By its content alone, nothing is wrong with a schema of 500 columns.
        allowed = REFUSED if len(columns) == 500 else INVALID
        return Forgery(f"schema: {kind}", methods.APPEND_SEGMENTS, _opened(opening), allowed)

    def _window(self) -> Forgery:
        far = self._number(1001 + 2**40, 2**63 - 1)
        wrong: tuple[str, Callable[[Window], object]] = self._one_of(
            ("sequence 0", lambda window: setattr(window, "first_sequence", 0)),
            (
                "a sequence near 2^64",
                lambda window: setattr(window, "first_sequence", _MAX_64 - self._number(0, 3)),
            ),
            ("a gap", lambda window: setattr(window, "first_sequence", self._number(2, 2**40))),
            ("a negative version", lambda window: setattr(window, "version", -self._number(1, 2**63))),
            ("an unpublished version", lambda window: setattr(window, "version", far)),
            ("version 2^63 - 1", lambda window: setattr(window, "version", 2**63 - 1)),
            ("one environment missing", lambda window: window.environments.pop()),
            ("many environments", lambda window: window.environments.extend([7] * self._number(1, 100_000))),
            ("no block", lambda window: window.ClearField("block")),
        )
        return self._damaged(f"window: {wrong[0]}", wrong[1], INVALID)

    def _block(self) -> Forgery:
        size = self._row.segment_bytes

        def offsets(values: list[int]) -> Callable[[Window], object]:
            return lambda window: window.block.MergeFrom(Block(column_offsets=values))

        def put(name: str, value: int | bytes) -> Callable[[Window], object]:
            return lambda window: setattr(window.block, name, value)

        wrong: tuple[str, Callable[[Window], object]] = self._one_of(
            ("another schema's", put("schema_hash", self._number(1, 2**62))),
            ("too few segments", put("segments", self._number(0, 1))),
            ("2^32 - 1 segments", put("segments", _MAX_32)),
            ("no parts", put("parts", 0)),
            ("2^32 - 1 parts", put("parts", _MAX_32)),
            ("a part out of order", put("part", self._number(1, _MAX_32))),
            ("an absurd part offset", put("part_offset", self._number(1, 2**63))),
            ("a part offset near 2^64", put("part_offset", _MAX_64)),
            ("an absurd size", put("total_bytes", self._number(10 * size, 2**63))),
            ("a size near 2^64", put("total_bytes", _MAX_64)),
            ("no size", put("total_bytes", 0)),
            ("no payload", put("payload", b"")),
            ("a payload that is too long", put("payload", bytes(self._number(2 * size + 1, 4 * size)))),
            ("a payload that is too short", put("payload", bytes(self._number(1, size)))),
            ("too many offsets", offsets([self._number(0, _MAX_64)] * self._number(1, 1000))),
            ("offsets near 2^64", lambda window: window.block.column_offsets.__setitem__(0, _MAX_64 - 7)),
            (
                "offsets not aligned",
                lambda window: window.block.column_offsets.__setitem__(1, self._number(1, 7)),
            ),
        )
        return self._damaged(f"block: {wrong[0]}", wrong[1], REFUSED)

    def _values(self) -> Forgery:
        checked = [index for index, column in enumerate(self._row.columns) if column.dtype in _UNUSABLE]
        column = self._row.columns[index := self._one_of(*checked)]
        value = self._one_of(*_UNUSABLE[column.dtype])

        def damage(window: Window) -> None:
            count = column.segment_bytes(self._row.unroll_length) * _WINDOW_SEGMENTS // len(value)
            at = window.block.column_offsets[index] + len(value) * self._number(0, count - 1)
            payload = bytearray(window.block.payload)
            payload[at : at + len(value)] = value
            window.block.payload = bytes(payload)

        return self._damaged("invalid values", damage, REFUSED)

    def _damaged(self, kind: str, damage: Callable[[Window], object], allowed: frozenset[str]) -> Forgery:
        opening, data = self._valid()
        request = Append.FromString(data)
        damage(request.window)
        messages = (*_opened(opening), request.SerializeToString())
        # Some forgeries leave the stream open: the service must answer all the same.
        ending = self._one_of("done", "open")
        return Forgery(kind, methods.APPEND_SEGMENTS, messages, allowed, ending)

    def _mutated_append(self) -> Forgery:
        opening, data = self._valid()
        (first,) = _opened(opening)
        if self._number(0, 1):
            while self._uses_healthy_slot(mutated := self._mutate(first)):
                pass
            return Forgery("mutated: opening", methods.APPEND_SEGMENTS, (mutated,), ANY)
        # The payload contains only invalid values, so that the service stores none of it under any mutation.
        payload = b"\xff" * len(Append.FromString(data).window.block.payload)
        mutated = self._mutate(data[: len(data) - len(payload)]) + payload
        return Forgery("mutated: window", methods.APPEND_SEGMENTS, (first, mutated), ANY)

    @staticmethod
    def _uses_healthy_slot(message: bytes) -> bool:
        try:
            head, _ = split_final(message)
            return Append.FromString(head).open.slot < FIRST_SLOT
        except (DecodeError, PenstockError):
            return False

    # Learners

    def _plan_numbers(self) -> Forgery:
        name = self._one_of("alpha", "epsilon", "half_life")
        # An infinite half-life is allowed.
        number = self._one_of(np.nan, -np.inf, -1.0, -1e-300, *([] if name == "half_life" else [np.inf]))
        tiny = 5e-324
        wrong: tuple[tuple[str, dict[str, Any], frozenset[str]], ...] = (
            (f"{name} {number}", {name: number}, INVALID),
            ("no half_life", {"half_life": 0.0}, INVALID),
            ("no epsilon", {"epsilon": 0.0}, INVALID),
            ("a tiny half_life", {"half_life": tiny}, INVALID),
            ("a huge alpha", {"alpha": 1e308}, INVALID),
            ("a huge epsilon", {"epsilon": 1e308}, INVALID),
            ("no session", {"session": 0}, INVALID),
            ("no segments", {"batch_segments": 0, "fresh_segments": 0}, INVALID),
            ("more fresh segments than segments", {"fresh_segments": _MAX_32, "batch_segments": 7}, INVALID),
            ("never published", {"publish_interval": 0}, INVALID),
            ("a negative batch", {"next_batch": -self._number(1, 2**63)}, INVALID),
            ("batch 2^63 - 1", {"next_batch": 2**63 - 1}, INVALID),
            ("2^32 - 1 segments", {"batch_segments": _MAX_32, "fresh_segments": _MAX_32}, REFUSED),
            ("degree 2^32 - 1", {"off_policy_degree": _MAX_32}, REFUSED),
        )
        kind, changes, allowed = self._one_of(*wrong)
        changed = replace(self._plan, **({"session": self._number(1, 2**62)} | changes))
        return Forgery(f"plan: {kind}", methods.SAMPLE_BATCHES, (_planned(changed),), allowed)

    def _request(self) -> Forgery:
        Batch = replay_pb2.BatchRequest  # noqa: N806
        far = self._one_of(-1, -(2**63), 2**63 - 1, 2**40)
        not_numbers: dict[str, Any] = {self._one_of("alpha", "half_life"): float("nan")}
        bad_plan = replace(self._plan, **not_numbers)
        kind, request = self._one_of(
            ("a batch out of order", Sample(batch=Batch(batch=far))),
            ("too many to replay", Sample(batch=Batch(batch=far, replay_segments=_MAX_32))),
            ("nothing", Sample()),
            ("a NaN plan", Sample(plan=encode_plan(bad_plan))),
            ("another session's plan", Sample(plan=encode_plan(replace(self._plan, session=5)))),
            ("a commit of no session", Sample(commit=Commit(batch=0))),
        )
        messages = (_planned(self._plan), request.SerializeToString())
        return Forgery(f"request: {kind}", methods.SAMPLE_BATCHES, messages, REFUSED, self._one_of("done", "open"))

    def _mutated_plan(self) -> Forgery:
        while self._takes_over(mutated := self._mutate(_planned(self._plan))):
            pass
        return Forgery("mutated: plan", methods.SAMPLE_BATCHES, (mutated,), ANY)

    def _takes_over(self, message: bytes) -> bool:
        """Returns whether the message is a valid plan of another session, which would end the healthy one."""
        try:
            request = Sample.FromString(message)
            if request.WhichOneof("message") != "plan":
                return False
            plan = decode_plan(request.plan)
        except (DecodeError, PenstockError):
            return False
        return plan != self._plan and plan.outstanding_limit + plan.batch_segments <= self._capacity

    def _commit(self) -> Forgery:
        count = self._number(1, 300)
        keys = np.arange(1, count + 1, dtype=np.uint64)
        values = keys / count
        bad = values.copy()
        bad[self._number(0, count - 1)] = self._one_of(np.nan, np.inf, -np.inf, -1.0, -5e-324)
        known, other = self._plan.session, self._number(1, 2**62)
        kind, request = self._one_of(
            ("priorities out of range", Commit(session=known, keys=keys.tobytes(), priorities=bad.tobytes())),
            ("fewer priorities", Commit(session=known, keys=keys.tobytes(), priorities=values[1:].tobytes())),
            ("half a key", Commit(session=known, keys=keys.tobytes()[3:], priorities=values.tobytes())),
            ("another session", Commit(session=other, keys=keys.tobytes(), priorities=values.tobytes())),
            (
                "a future batch",
                Commit(
                    session=known,
                    batch=self._number(2**40, 2**63 - 1),
                    keys=keys.tobytes(),
                    priorities=values.tobytes(),
                ),
            ),
            ("a negative batch", Commit(session=known, batch=-self._number(1, 2**63))),
            ("a batch near 2^63", Commit(session=known, batch=2**63 - 1)),
        )
        data = request.SerializeToString()
        if self._number(0, 3):
            return Forgery(f"commit: {kind}", methods.COMMIT_BATCH, (data,), REFUSED)
        stream = (_planned(self._plan), Sample(commit=request).SerializeToString())
        return Forgery(f"commit: {kind}", methods.SAMPLE_BATCHES, stream, REFUSED)

    def _mutated_commit(self) -> Forgery:
        keys = np.arange(1, 9, dtype=np.uint64)
        # No mutation of a byte or two brings this batch number near the next one.
        request = Commit(
            session=self._plan.session, batch=0x7777777777777777, keys=keys.tobytes(), priorities=bytes(64)
        )
        mutated = self._mutate(request.SerializeToString())
        return Forgery("mutated: commit", methods.COMMIT_BATCH, (mutated,), ANY)

    # Any client

    def _noise(self) -> Forgery:
        message = self._bytes(self._number(1, 400))
        if self._number(0, 4):
            return Forgery("noise", self._any_method(), (message,), ANY)
        return Forgery("noise: once open", methods.APPEND_SEGMENTS, (*_opened(self._open()), message), ANY)

    def _truncated(self) -> Forgery:
        opening, data = self._valid()
        (first,) = _opened(opening)
        commit = Commit(session=5, keys=bytes(80), priorities=bytes(80)).SerializeToString()
        cut_from: tuple[Method, tuple[bytes, ...]] = self._one_of(
            (methods.APPEND_SEGMENTS, (first,)),
            (methods.APPEND_SEGMENTS, (first, data)),
            (methods.SAMPLE_BATCHES, (_planned(replace(self._plan, session=0)),)),
            (methods.COMMIT_BATCH, (commit,)),
        )
        method, whole = cut_from
        cut = whole[-1][: self._number(0, len(whole[-1]) - 1)]
        if self._uses_healthy_slot(cut) and method is methods.APPEND_SEGMENTS and len(whole) == 1:
            # The slot was cut off.
            cut = cut[:3]
        return Forgery("truncated", method, (*whole[:-1], cut), ANY)

    def _fields(self) -> Forgery:
        """A message of only tiny fields: many repetitions of a known one, or unknown ones."""
        field = self._one_of(b"\x08\x01", b"\x12\x00", b"\x7a\x00", b"\xf0\x01\x05")
        inner = field * self._number(1_000, 1_000_000)
        message = self._one_of(inner, _nested(0x0A, inner), _nested(0x0A, _nested(0x0A, inner)))
        return Forgery("very many fields", self._any_method(), (message,), ANY)

    def _oversized(self) -> Forgery:
        size = self._one_of(4 * 2**20 + 1, 8 * 2**20, 32 * 2**20)
        ending = self._one_of("done", "gzip")
        message = Commit(keys=bytes(size)).SerializeToString()
        kind = "oversized" + (", compressed" if ending == "gzip" else "")
        return Forgery(kind, self._any_method(), (message,), frozenset({"RESOURCE_EXHAUSTED"}), ending)

    def _status(self) -> Forgery:
        message = self._mutate(self._bytes(12))
        return Forgery("status: with content", methods.GET_REPLAY_STATUS, (message,), ANY)

    def _left(self) -> Forgery:
        """Streams that end, or whose client leaves, at an inconvenient moment."""
        opening, data = self._valid()
        first = _opened(opening)
        part = Append.FromString(data)
        part.window.block.parts = 2
        part.window.block.payload = part.window.block.payload[:1000]
        cut = (*first, part.SerializeToString())
        wait = Sample(batch=replay_pb2.BatchRequest(batch=2**40)).SerializeToString()
        left: tuple[str, Method, tuple[bytes, ...]] = self._one_of(
            ("before its first message", methods.APPEND_SEGMENTS, ()),
            ("before its first message", methods.SAMPLE_BATCHES, ()),
            ("once open", methods.APPEND_SEGMENTS, first),
            ("between two parts", methods.APPEND_SEGMENTS, cut),
            ("between two parts", methods.APPEND_SEGMENTS, (*cut, *first)),
            ("once planned", methods.SAMPLE_BATCHES, (_planned(self._plan),)),
            ("after a request", methods.SAMPLE_BATCHES, (_planned(self._plan), wait)),
        )
        kind, method, messages = left
        ending = self._one_of("done", "drop", "drop", "break")
        return Forgery(f"{ending}: {kind}", method, messages, ANY, ending)

    def _silent(self) -> Forgery:
        method = self._one_of(methods.APPEND_SEGMENTS, methods.SAMPLE_BATCHES)
        return Forgery("silent from the start", method, (), INVALID, "open")

    def _unread(self) -> Forgery:
        heartbeat = Append(heartbeat=replay_pb2.Heartbeat()).SerializeToString()
        messages = (*_opened(self._open()), *([heartbeat] * 50))
        return Forgery("unread: an actor's answers", methods.APPEND_SEGMENTS, messages, ANY, "unread")

    # Components

    def _open(self) -> Open:
        self._incarnation += 1
        slot = self._number(FIRST_SLOT, SLOTS - 1)
        return Open(
            schema=encode_schema(self._row),
            slot=slot,
            incarnation=self._incarnation,
            window_segments=_WINDOW_SEGMENTS,
        )

    def _valid(self) -> tuple[Open, bytes]:
        """Returns an opening, and a window that fits it."""
        opening = self._open()
        (data,) = encode_window(self._make_window(opening.slot, opening.incarnation))
        return opening, data

    def _mutate(self, message: bytes) -> bytes:
        mutated = bytearray(message)
        for _ in range(self._number(1, 4)):
            at = self._number(0, max(0, len(mutated) - 1))
            change = self._number(0, 4)
            if change == 0 and mutated:
                mutated[at] ^= 1 << self._number(0, 7)
            elif change == 1 and mutated:
                mutated[at] = self._one_of(0, 0x7F, 0x80, 0xFF, self._number(0, 255))
            elif change == 2:
                del mutated[at : at + self._number(1, 8)]
            elif change == 3:
                mutated[at:at] = mutated[at : at + self._number(1, 16)]
            else:
                mutated[at:at] = self._bytes(self._number(1, 9))
        return bytes(mutated)

    def _any_method(self) -> Method:
        return self._one_of(
            methods.APPEND_SEGMENTS, methods.SAMPLE_BATCHES, methods.COMMIT_BATCH, methods.GET_REPLAY_STATUS
        )


def _column(**fields: Any) -> block_pb2.Column:
    values: dict[str, Any] = {"name": "c", "data_type": 7, "extent": 1, **fields}
    return block_pb2.Column(**values)


@functools.cache
def _many_columns(count: int) -> list[block_pb2.Column]:
    return [_column(name=f"c{number}", data_type=2) for number in range(count)]


def _nested(tag: int, content: bytes) -> bytes:
    """Returns a message with one field, which holds this content."""
    size, encoded = len(content), bytearray([tag])
    while size > 0x7F:
        encoded.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*encoded, size]) + content


def _opened(opening: Open) -> tuple[bytes]:
    return (Append(open=opening).SerializeToString(),)


def _planned(plan: SamplingPlan) -> bytes:
    return Sample(plan=encode_plan(plan)).SerializeToString()

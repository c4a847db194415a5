"""Conversion of an actor's stream: its opening, windows, heartbeats and the staging area, and the responses."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import DamagedWindow, InvalidSegment
from penstock.types.block import Columns, Fragment, Schema
from penstock.types.codecs import ENCODINGS, Codec
from penstock.types.payloads import Places, layout
from penstock.types.records import plain
from penstock.types.replay import Grant, StagingOffer, Window, WindowHead
from penstock.types.run import Assignment
from penstock.v1 import block_pb2, replay_pb2
from penstock.wire import block
from penstock.wire.block import BlockAssembler, BlockReader, EncodedColumns, split_final
from penstock.wire.encoding import EncodedWindow, raw_window
from penstock.wire.fields import decoded
from penstock.wire.schema import decode_schema, encode_schema

_MAX_HEAD_BYTES = 2**18
"""Limit on an actor's message without its payload, in bytes. Once parsed, tiny fields take fifty times their size in
memory, and they cost the service time. A schema of a thousand columns fits."""


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """AppendSegments request as received: the message without its window, and the window's bytes, if any."""

    message: replay_pb2.AppendSegmentsRequest
    window: memoryview | None


def read_append_request(data: bytes) -> AppendRequest:
    """Parses all but the window. Raises `InvalidSegment`, or protobuf's DecodeError."""
    head, window = split_final(data)
    _check_head(head)
    return AppendRequest(replay_pb2.AppendSegmentsRequest.FromString(head), window)


def _check_head(head: bytes) -> None:
    if len(head) > _MAX_HEAD_BYTES:
        raise InvalidSegment(
            f"malformed message: it has {len(head)} bytes besides the payload; the maximum is {_MAX_HEAD_BYTES}"
        )


@dataclass(frozen=True, slots=True)
class Opening:
    """First request of an actor's stream, with the fields of the contract's OpenAppend."""

    slot: int
    incarnation: int
    schema: Schema
    window_segments: int
    run: int = 0
    replay_token: bytes = b""


def encode_open_append(schema: Schema, assignment: Assignment) -> replay_pb2.AppendSegmentsRequest:
    """Encodes the first request of an actor's stream, which announces its windows."""
    opening = replay_pb2.OpenAppend(
        schema=encode_schema(schema),
        slot=assignment.slot,
        incarnation=assignment.incarnation,
        window_segments=len(assignment.environments),
        run=assignment.run,
        replay_token=assignment.replay_token,
    )
    return replay_pb2.AppendSegmentsRequest(open=opening)


def decode_opening(request: AppendRequest) -> Opening:
    """Decodes the first request of an actor's stream. Raises `InvalidSegment` for any other."""
    if request.message.WhichOneof("message") != "open":
        raise InvalidSegment("an append stream must begin with `open`")
    message = request.message.open
    return Opening(
        message.slot,
        message.incarnation,
        decode_schema(message.schema),
        message.window_segments,
        message.run,
        message.replay_token,
    )


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Sign of life of an actor, with the fields of the contract's Heartbeat."""

    steps: int
    round_trip_windows: int = 0
    waits: bool = False


@dataclass(frozen=True, slots=True)
class StagingProof:
    """Number that an actor has written to its staging area."""

    number: int


def encode_heartbeat(heartbeat: Heartbeat) -> replay_pb2.AppendSegmentsRequest:
    """Encodes an actor's heartbeat."""
    return replay_pb2.AppendSegmentsRequest(heartbeat=replay_pb2.Heartbeat(**plain(heartbeat)))


def encode_staging_proof(number: int) -> replay_pb2.AppendSegmentsRequest:
    """Encodes the client's proof of its staging area."""
    return replay_pb2.AppendSegmentsRequest(staging=replay_pb2.StagingProof(number=number))


def decode_append_request(request: AppendRequest, *, staged: bool) -> Heartbeat | StagingProof:
    """Decodes a later request without a window; `staged` is whether the stream has a staging area.

    Raises:
        InvalidSegment: The request is another, or proves a staging area that the stream does not have.
    """
    match request.message.WhichOneof("message"):
        case "heartbeat":
            return decoded(Heartbeat, request.message.heartbeat)
        case "staging" if staged:
            return StagingProof(request.message.staging.number)
    raise InvalidSegment("after `open`, an append stream carries windows, heartbeats and a proof of the staging area")


def encode_window(window: Window) -> Iterator[bytes]:
    """Yields serialised AppendSegmentsRequests, one per part, with raw columns."""
    return encode_encoded_window(raw_window(window))


def encode_encoded_window(window: EncodedWindow) -> Iterator[bytes]:
    """Yields serialised AppendSegmentsRequests, one per part, with columns in their forms."""
    where = window.places
    for request, start, payload in _blank_requests(window.head, window.schema, where):
        block.pack(window.contents, where, start, payload)
        yield request


def decoded_window(head: WindowHead, schema: Schema, messages: Sequence[bytes]) -> Window:
    """Returns a window with raw columns from its messages with encoded ones, for a receiver that does not read them."""
    assembler = BlockAssembler(layout(schema, head.segments)[1])
    encoded: Columns | EncodedColumns | None = None
    for message in messages:
        window = read_append_request(message).window
        assert window is not None
        encoded = assembler.add(schema, split_final(window)[1] or b"")
    assert isinstance(encoded, EncodedColumns)
    columns = schema.empty(head.segments)
    damaged = encoded.decode(columns)
    assert not damaged, "bytes that this process has encoded itself"
    return Window(head, columns)


def _blank_requests(head: WindowHead, schema: Schema, where: Places) -> Iterator[tuple[bytes, int, NDArray[np.uint8]]]:
    """Yields the request of each part, the part's offset in the payload, and the part, <uint8>[...], to be written."""
    if where.forms is None:
        parts: Iterable[tuple[bytes, slice]] = block.raw_heads(schema, head.segments)
    else:
        parts = ((each.SerializeToString(), part) for each, part in block.heads(schema, head.segments, where))
    for block_head, part in parts:
        message = _window_head(head)
        if part.start:
            message.ClearField("environments")
        heads = [b"", message.SerializeToString(), block_head]
        request, payload = block.blank_message(heads, part.stop - part.start)
        block.clear_gaps(where, part.start, payload)
        yield request, part.start, payload


def encode_staged_window(window: EncodedWindow, slot: int, checksum: int) -> bytes:
    """Serialises the AppendSegmentsRequest of a window whose payload, with this checksum, is in a staging slot."""
    whole, _ = next(block.heads(window.schema, window.head.segments, window.places))
    whole.parts = 1
    message = _window_head(window.head, staged_in=slot, staged_checksum=checksum, block=whole)
    return replay_pb2.AppendSegmentsRequest(window=message).SerializeToString()


def _window_head(head: WindowHead, **beside: Any) -> replay_pb2.Window:
    environments = head.environments.tolist()
    return replay_pb2.Window(
        first_sequence=head.first_sequence, version=head.version, environments=environments, **beside
    )


@dataclass(frozen=True, slots=True)
class WindowPart:
    """One part of a received window.

    Attributes:
        head: Head of the window.
        first, last: Whether this is the first part, and the last.
        fragments: This part's bytes of each column; views of `payload`.
        payload: <uint8>[...] view of the message or of the staging slot.
        checksum: Checksum that the sender computed over a staged payload; None for a payload in messages.
    """

    head: WindowHead
    first: bool
    last: bool
    fragments: tuple[Fragment, ...]
    payload: NDArray[np.uint8]
    checksum: int | None

    def verify(self, checksum: int) -> None:
        """Raises `DamagedWindow` if this checksum of the staged payload as read differs from the sender's."""
        if checksum != self.checksum:
            raise DamagedWindow(
                f"the window of slot {self.head.slot} from sequence {self.head.first_sequence} has a different checksum"
                " in the staging area than at its actor; send it again in messages"
            )


class WindowReader:
    """Reader of an actor's windows, which checks them against its announcement. One per stream."""

    def __init__(self, *, schema: Schema, slot: int, incarnation: int, window_segments: int) -> None:
        """Creates a reader from the values of `OpenAppend`."""
        self._staging: NDArray[np.uint8] | None = None
        self._schema, self._slot, self._incarnation = schema, slot, incarnation
        self._segments = window_segments
        _, total = layout(schema, window_segments)
        self._blocks = BlockReader(total, window_segments)
        self._environments: NDArray[np.uint32] = np.zeros(0, np.uint32)

    def take_staged(self, slots: NDArray[np.uint8]) -> None:
        """Accepts windows in the stream's staging area, <uint8>[slots, bytes], from now on."""
        self._staging = slots

    def add(self, message: memoryview) -> WindowPart:
        """Takes the next serialised Window. Raises `InvalidSegment` if it contradicts the announcement."""
        head_bytes, content = split_final(message)
        _check_head(head_bytes)
        window = replay_pb2.Window.FromString(head_bytes)
        staged = self._staged(window.staged_in) if window.HasField("staged_in") else None
        checksum = window.staged_checksum if staged is not None else None
        part = self._blocks.add(self._schema, content if content is not None else b"", staged)
        if part.first:
            self._environments = np.array(window.environments, np.uint32)
        if self._environments.size != self._segments:
            raise InvalidSegment(
                f"the window has {part.segments} segments and {self._environments.size} environments; slot"
                f" {self._slot} announced {self._segments}"
            )
        if window.first_sequence < 1 or window.version < 0:
            raise InvalidSegment(
                f"sequences start at 1 and versions at 0, got {window.first_sequence} and {window.version}"
            )
        head = WindowHead(
            self._slot,
            self._incarnation,
            window.first_sequence,
            window.version,
            self._environments,
            part.places.forms,
        )
        return WindowPart(head, part.first, part.last, tuple(part.fragments()), part.data, checksum)

    def _staged(self, number: int) -> NDArray[np.uint8]:
        if self._staging is None or number >= len(self._staging):
            raise InvalidSegment(
                f"a window is in slot {number} of the staging area, which has no such slot or was not proved"
            )
        slot: NDArray[np.uint8] = self._staging[number]
        return slot


@dataclass(frozen=True, slots=True)
class AppendResponse:
    """A response on an actor's stream, with the fields of the contract's AppendSegmentsResponse.

    `staging_proof` is the number alone, and `codecs` and `staged_codecs` have the codecs that this release writes.
    """

    stored_sequence: int
    grants: tuple[Grant, ...]
    returned_grants: int
    staging: StagingOffer | None
    staging_proof: int | None
    codecs: tuple[Codec, ...]
    staged_codecs: tuple[Codec, ...]


def encode_append_response(
    stored_sequence: int,
    grants: list[Grant],
    staging: StagingOffer | None = None,
    returned: int = 0,
    staging_proof: int | None = None,
    codecs: Sequence[Codec] = (),
) -> replay_pb2.AppendSegmentsResponse:
    """Encodes an acknowledgement with new and returned grants.

    The first also has the staging area and the codecs, in which windows may be sent and staged.
    """
    names = [block_pb2.Codec.Name(codec) for codec in codecs]
    return replay_pb2.AppendSegmentsResponse(
        stored_sequence=stored_sequence,
        staging=None if staging is None else plain(staging),
        returned_grants=returned,
        codecs=names,
        staged_codecs=names,
        staging_proof=None if staging_proof is None else replay_pb2.StagingProof(number=staging_proof),
        grants=[replay_pb2.Grant(batch=grant.batch, minimum_version=grant.minimum_version) for grant in grants],
    )


def decode_append_response(message: replay_pb2.AppendSegmentsResponse) -> AppendResponse:
    """Decodes a response on an actor's stream."""
    return AppendResponse(
        message.stored_sequence,
        tuple(Grant(grant.batch, grant.minimum_version) for grant in message.grants),
        message.returned_grants,
        decoded(StagingOffer, message.staging) if message.HasField("staging") else None,
        message.staging_proof.number if message.HasField("staging_proof") else None,
        _written(message.codecs),
        _written(message.staged_codecs),
    )


def _written(codecs: Sequence[int]) -> tuple[Codec, ...]:
    """Returns the codecs of a peer that this release writes, best first."""
    named = set(map(int, codecs))
    return tuple(codec for codec in ENCODINGS if int(codec) in named)

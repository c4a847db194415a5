"""One SampleBatches stream, from its plan to its end: how columns are read, and the requests and batches in order.

The columns come in messages, or from the store's file if both sides map the same memory. All methods run on the loop.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, assert_never

from penstock.errors import ConfigurationError
from penstock.replay.store.store_reader import StoreReader
from penstock.rpc.channel import Stream, exchange
from penstock.rpc.loop import off_loop
from penstock.telemetry import metrics
from penstock.types.block import Schema
from penstock.types.codecs import ENCODINGS
from penstock.types.payloads import PayloadPool, allocate
from penstock.types.replay import Batch, BatchHead, MappedStore, SamplingPlan
from penstock.wire import batches as wire

MAX_BATCH_BYTES = 2**31


class SamplingStream:
    """Client side of one stream, which owns its responses until their batches are delivered.

    Attributes:
        next_request: First batch that this stream has not requested.
        accepted: Whether the service has accepted the plan.
        ready: Whether batches may be requested: the plan is accepted, and it is decided how columns are read.
        reader: Reader of the mapped store; None if columns come in messages.
        refusal: Reason why an offered store is not read; empty without one.
    """

    def __init__(self, call: Stream, plan: SamplingPlan, schema: Schema, pool: PayloadPool) -> None:
        """Prepares the stream, which `run` opens with the plan. Its `next_batch` is the first to request."""
        self._call, self._plan, self._schema, self._pool = call, plan, schema, pool
        self.next_request = plan.next_batch
        self.accepted = self.ready = False
        self.reader: StoreReader | None = None
        self.refusal = ""
        self._assembler = wire.BatchAssembler(MAX_BATCH_BYTES, pool)
        self._writing = asyncio.Lock()
        self._arrived: asyncio.Queue[Batch | BatchHead | wire.EncodedBatch] = asyncio.Queue()
        self._redrawn: asyncio.Queue[BatchHead] = asyncio.Queue()
        self._reading: int | None = None
        self._mapped: StoreReader | None = None
        self._proof_requested = False

    async def run(
        self,
        *,
        request: Callable[["SamplingStream"], Coroutine[Any, Any, None]],
        watch: Callable[[Stream], Coroutine[Any, Any, None]],
        take: Callable[[wire.SampleResponse], None],
        deliver: Callable[[Batch], None],
    ) -> None:
        """Runs the stream until it ends, with `request`, which writes requests, and `watch` beside it.

        Calls `take` with each response after this stream has taken it, and `deliver` with each complete batch in order.
        """

        async def complete() -> None:
            while True:
                match await self._arrived.get():
                    case Batch() as batch:
                        deliver(batch)
                    case wire.EncodedBatch() as encoded:
                        deliver(await self._decode(encoded))
                    case BatchHead() as head:
                        deliver(await self._read(head))

        def receive(response: wire.SampleResponse) -> None:
            self._take(response)
            take(response)

        opening = wire.encode_plan_request(self._plan, ENCODINGS)
        beside = (lambda: request(self), lambda: watch(self._call), complete)
        await exchange(self._call, opening, beside=beside, take=receive)

    async def prove_if_mapped(self) -> None:
        """Requests a proof, once, that the memory mapped here is the one that the service writes."""
        if self._mapped is not None and not self._proof_requested:
            self._proof_requested = True
            await self._write(wire.encode_proof_request())

    async def adjust(self, plan: SamplingPlan) -> None:
        """Sends another plan of the same session."""
        await self._write(wire.encode_plan_request(replace(plan, next_batch=self.next_request)))

    async def commit(self, commit: wire.CommitRequest) -> None:
        """Sends a commit alone."""
        await self._write(wire.encode_commit_request(commit))

    async def request(self, number: int, replay_segments: int | None, commit: wire.CommitRequest | None) -> None:
        """Requests a batch, whose number is at least `next_request`, as `wire.encode_batch_request` describes."""
        head_only = self.reader is not None
        await self._write(wire.encode_batch_request(number, head_only, replay_segments, commit))
        self.next_request = number + 1

    async def _write(self, request: wire.SampleRequest) -> None:
        async with self._writing:
            await self._call.write(request)

    def _take(self, response: wire.SampleResponse) -> None:
        match response.kind:
            case "opened":
                self.accepted = True
                self._map(wire.decode_mapped_store(response.message.opened))
            case "proof":
                self._read_if_shown(response.message.proof.number)
            case "batch":
                self._take_batch(response)
            case "answer" | "waiting":
                pass
            case _:
                assert_never(response.kind)

    def _map(self, store: MappedStore | None) -> None:
        if store is not None:
            try:
                self._mapped = StoreReader(store, self._schema)
            except ConfigurationError as error:
                self.refusal = str(error)
        self.ready = self._mapped is None

    def _read_if_shown(self, proof: int) -> None:
        self.ready = True
        if self._mapped is not None and self._mapped.shows(proof):
            self.reader = self._mapped
        else:
            self.refusal = "the store's file is visible here, but not the memory that the service maps"

    def _take_batch(self, response: wire.SampleResponse) -> None:
        if self.reader is None:
            batch = self._assembler.add(self._schema, response)
            if batch is not None:
                self._arrived.put_nowait(batch)
            return
        head = wire.decode_batch_head(response.message)
        (self._redrawn if head.number == self._reading else self._arrived).put_nowait(head)

    async def _decode(self, encoded: wire.EncodedBatch) -> Batch:
        size = encoded.columns.segments * self._schema.segment_bytes
        batch, damaged = await off_loop(size, encoded.decode, self._pool)
        metrics.LEARNER_DAMAGED.inc(damaged)
        return batch

    async def _read(self, head: BatchHead) -> Batch:
        """Reads a batch's columns from the store. Requests new draws for segments overwritten meanwhile."""
        assert self.reader is not None
        self._reading = head.number
        columns = allocate(self._schema, head.keys.size, self._pool)
        while not await off_loop(head.keys.size * self._schema.segment_bytes, self.reader.gather, head.keys, columns):
            metrics.LEARNER_REDRAWS.inc()
            await self._write(wire.encode_batch_request(head.number, head_only=True))
            head = await self._redrawn.get()
            if head.keys.size != columns.segments:
                columns = allocate(self._schema, head.keys.size, self._pool)
        metrics.LEARNER_DAMAGED.inc(self.reader.take_damaged())
        return Batch(head, columns)

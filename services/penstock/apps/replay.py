"""`penstock replay`: the replay service."""

import asyncio
from pathlib import Path

from penstock.apps.service import Service
from penstock.config import Config
from penstock.replay.admission import Gate
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.ring_store import RingStore
from penstock.rpc.replay_servicer import ReplayServicer
from penstock.telemetry import metrics

_STOP_CHECK_S = 0.1


def run(config: Config) -> None:
    """Serves until told to stop. Raises `ConfigurationError` for a store or an address that can't be had."""
    settings = config.replay
    with Service("replay", config.telemetry, listen=settings.listen, metrics_port=settings.metrics_port) as service:
        store = RingStore(Path(settings.folder) if settings.folder else None, int(settings.capacity_bytes))
        metrics.REPLAY_CAPACITY_BYTES.set(int(settings.capacity_bytes))
        if store.schema is not None:
            found = store.recovery
            service.logger.info("recovered", segments=found.segments, damaged=found.damaged, torn=found.torn)
            metrics.REPLAY_DAMAGED.set(found.damaged)
            metrics.REPLAY_TORN.set(found.torn)
        buffer = ReplayBuffer(store, Gate(settings.grant_timeout_s, settings.max_actors))
        asyncio.run(_serve(config, service, buffer))
        buffer.flush()


async def _serve(config: Config, service: Service, buffer: ReplayBuffer) -> None:
    settings = config.replay
    servicer = ReplayServicer(buffer, max_actors=settings.max_actors, staging_bytes=int(settings.staging_bytes))
    await servicer.server.start(config.replay.listen)
    service.logger.info("serving", listen=config.replay.listen, capacity_bytes=int(config.replay.capacity_bytes))
    ticking = asyncio.create_task(servicer.tick())
    while not service.stopping and not ticking.done():
        await asyncio.sleep(_STOP_CHECK_S)
    ticking.cancel()
    await servicer.server.stop()

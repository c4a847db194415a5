"""Refusals of clients that belong to another run or place. The server reports them here, and the client by itself."""

import contextlib
from collections.abc import Iterator
from typing import Literal

from penstock.errors import PlaceLost, SchemaMismatch
from penstock.telemetry import logs, metrics


@contextlib.contextmanager
def logged_refusal(who: Literal["actor", "evaluator", "learner"], **where: str) -> Iterator[None]:
    """Logs and counts the refusal of a client that the enclosed check finds to be another run's.

    `where` has further fields of the event, such as the client's address.
    """
    try:
        yield
    except (SchemaMismatch, PlaceLost) as error:
        metrics.REFUSED_CLIENTS.labels(who).inc()
        logs.note(f"{who} refused", **where, reason=str(error))
        raise

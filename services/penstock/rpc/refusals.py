"""Refusals of clients of another run or place, or without the run's key. Server and client report them."""

import contextlib
from collections.abc import Iterator
from typing import Literal

from penstock.errors import PermissionDenied, PlaceLost, SchemaMismatch
from penstock.telemetry import logs, metrics


@contextlib.contextmanager
def logged_refusal(who: Literal["actor", "evaluator", "learner", "operator"], **where: str) -> Iterator[None]:
    """Logs and counts the refusal of a client that the enclosed check finds not to be the run's.

    `where` has further fields of the event, such as the client's address.
    """
    try:
        yield
    except (SchemaMismatch, PlaceLost, PermissionDenied) as error:
        metrics.REFUSED_CLIENTS.labels(who).inc()
        logs.note(f"{who} refused", **where, reason=str(error))
        raise

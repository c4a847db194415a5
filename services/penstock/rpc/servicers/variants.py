"""Changes of a run's variants over gRPC, served by the learner.

A client without a certificate must prove the run's key, as for a snapshot: the variants decide what actors do.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

from penstock.errors import ConfigurationError
from penstock.learning.members.population import Population
from penstock.learning.report.statistics import RunStatistics
from penstock.rpc import methods
from penstock.rpc.errors import logged_refusal
from penstock.rpc.proofs import require_operator
from penstock.rpc.service import Context, Method, opening_message, write_whole
from penstock.v1 import run_pb2
from penstock.wire import variants as wire


class VariantServicer:
    """Servicer of a run's variants. Runs on the server's event loop."""

    def __init__(self, population: Population | None, statistics: RunStatistics, prover: bytes = b"") -> None:
        """Creates the servicer. Without a `population`, every request is refused.

        `prover` is the public half of the run's key, which clients must prove; empty: they have certificates instead.
        """
        self._population, self._statistics, self._prover = population, statistics, prover

    @property
    def behaviours(self) -> dict[Method, Callable[..., Awaitable[Any]]]:
        """Methods for the learner's server."""
        return {methods.CHANGE_VARIANTS: self._change}

    async def _change(self, requests: AsyncIterator[run_pb2.ChangeVariantsRequest], context: Context) -> None:
        request = await opening_message(requests)
        with logged_refusal("operator", peer=context.peer()):
            require_operator(self._prover, methods.CHANGE_VARIANTS, context.challenge, request)
            change, population = wire.decode_change(request), self._population
            if population is None:
                raise ConfigurationError(
                    "the actors of this run do not play variants in turn; start it with environment.vary episodes, and"
                    " at least one table of environment.variants"
                )
            population.change(change.add, change.retire)
        known = [
            replace(
                each,
                share=0.0 if each.retired else each.share,
                episodes=self._statistics.variant_episodes(each.number),
                return_mean=next(map(_mean, self._statistics.variant_returns([each.number]))),
            )
            for each in population.variants
        ]
        await write_whole(context, wire.encode_known(known))


def _mean(returns: list[float]) -> float | None:
    return sum(returns) / len(returns) if returns else None

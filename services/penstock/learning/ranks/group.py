"""The ranks of a learner as a group of processes, which torchrun starts.

Sums of tensors on a CPU go over gloo, those on CUDA devices over NCCL. A second group over gloo, on a thread of its
own, carries the messages of rank 0 to the others (`ranks.link`).
"""

import datetime
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from penstock.errors import ConfigurationError, RankLost
from penstock.learning.ranks.ranks import part_of

_GROUP_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that torchrun sets for each rank, as do other launchers of torch's processes."""


_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Place of this process among the ranks.

    Attributes:
        rank: Number of the rank. Rank 0 alone speaks to the other services.
        count: Number of ranks.
        local_rank: Number of the rank on this host, and of its GPU.
        local_count: Number of ranks on this host.
    """

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    local_count: int = 1

    @property
    def alone(self) -> bool:
        """Whether there is no other rank."""
        return self.count == 1


def place_of(environment: Mapping[str, str]) -> RankPlace:
    """Returns the place that torchrun's variables give this process; without them, it is alone.

    Raises `ConfigurationError` if some of them are missing or not numbers.
    """
    if environment.get("WORLD_SIZE", "1") == "1":
        return RankPlace()
    if missing := [name for name in _GROUP_VARIABLES if not environment.get(name)]:
        raise ConfigurationError(
            f"the variable WORLD_SIZE says that the learner has {environment['WORLD_SIZE']} ranks, and"
            f" {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set; start the ranks with torchrun, or"
            " unset WORLD_SIZE"
        )
    try:
        rank, count = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        local_rank = int(environment.get("LOCAL_RANK", "0"))
        local_count = int(environment.get("LOCAL_WORLD_SIZE", "1"))
        if not 0 <= rank < count or not 0 <= local_rank < local_count:
            raise ValueError
    except ValueError:
        given = ", ".join(
            f"{name}={environment[name]}"
            for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
            if name in environment
        )
        raise ConfigurationError(
            f"the variables {given} give this process no place among the ranks; start the ranks with torchrun, or unset"
            " WORLD_SIZE"
        ) from None
    return RankPlace(rank, count, local_rank, local_count)


class RankGroup:
    """This process's connections to the other ranks; implements `Ranks`. Used by the training thread."""

    alone = False

    def __init__(
        self,
        place: RankPlace,
        device: torch.device,
        timeout_s: float,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """Waits up to `timeout_s` for all ranks to connect. No later sum waits longer for a rank.

        Raises `RankLost` if one is missing or this one is `stopping`, and `ConfigurationError` if the ranks compute on
        different kinds of devices.
        """
        self.place, timeout = place, datetime.timedelta(seconds=timeout_s)
        try:
            store, _, _ = next(rendezvous("env://", place.rank, place.count, timeout=timeout))
            store = unused_part(store, place, timeout_s, stopping)
            dist.init_process_group("gloo", store=store, rank=place.rank, world_size=place.count, timeout=timeout)
            on_cuda = torch.tensor([device.type == "cuda"], dtype=torch.int64)
            dist.all_reduce(on_cuda)
            self.link = dist.new_group(backend="gloo", timeout=timeout)
        except (RuntimeError, ValueError) as error:
            raise RankLost(
                f"rank {place.rank} of the learner did not meet the others, {place.count} in all ({_reason(error)});"
                " start all of them, with the same MASTER_ADDR and MASTER_PORT, on hosts that reach one another on all"
                " ports"
            ) from error
        if int(on_cuda) not in (0, place.count):
            raise ConfigurationError(
                f"{int(on_cuda)} of the {place.count} ranks compute on CUDA devices, and this one on {device}; set"
                " learner.device to cpu or cuda for all of them"
            )
        # A CUDA device's sums must not pass through the host.
        self._sums = dist.new_group(backend="nccl", timeout=timeout) if device.type == "cuda" else None

    def own(self, count: int) -> slice:
        """Implements `Ranks`."""
        return part_of(count, self.place.rank, self.place.count)

    def add(self, values: Tensor) -> None:
        """Implements `Ranks`."""
        try:
            dist.all_reduce(values, group=self._sums)
        except RuntimeError as error:
            raise lost(self.place, error) from error

    def close(self) -> None:
        """Ends the connections."""
        dist.destroy_process_group()


def lost(place: RankPlace, error: Exception) -> RankLost:
    """Returns the error for a collective operation that failed on this rank."""
    other = "another rank" if place.rank == 0 else "rank 0 or another one"
    return RankLost(
        f"rank {place.rank} of the learner can't continue without {other}, which has ended or does not answer"
        f" ({_reason(error)}); torchrun starts all ranks again with --max-restarts, and the run resumes from its newest"
        " checkpoint"
    )


def unused_part(
    store: Store, place: RankPlace, timeout_s: float, stopping: Callable[[], bool] = lambda: False
) -> Store:
    """Returns a part of the store that no ranks have used before.

    Raises `RuntimeError` if a rank is missing, and `RankLost` if this one is `stopping`: after a signal during the
    start, another rank may never come.

    torchrun starts all ranks again with the same store, which has the addresses of those that ended. Rank 0 therefore
    names a new part, and each other rank asks for its name with a random number, to which no earlier answer belongs.
    """
    deadline = time.monotonic() + timeout_s

    def wait(missing: str) -> None:
        if time.monotonic() > deadline:
            raise RuntimeError(f"no sign of {missing} within {timeout_s:g} s")
        if stopping():
            raise RankLost(
                f"rank {place.rank} of the learner was stopped before it met the others, {place.count} in all"
            )
        time.sleep(_LOOK_S)

    if place.rank:
        number, answer = secrets.token_hex(8), f"answer to {place.rank}"
        store.set(f"question of {place.rank}", number)
        while not store.check([answer]) or store.get(answer).decode().partition(" ")[0] != number:
            wait("rank 0")
        name = store.get(answer).decode().partition(" ")[2]
        store.set(f"{name} {place.rank}", "")
        return PrefixStore(name, store)
    name, others = secrets.token_hex(8), set(range(1, place.count))
    while others:
        for rank in others:
            if store.check([f"question of {rank}"]):
                store.set(f"answer to {rank}", f"{store.get(f'question of {rank}').decode()} {name}")
        others -= {rank for rank in others if store.check([f"{name} {rank}"])}
        if others:
            wait(f"ranks {', '.join(map(str, sorted(others)))}")
    return PrefixStore(name, store)


def _reason(error: Exception) -> str:
    """Returns the first sentence of an error of torch, without the place in its source."""
    return re.sub(r"^\[[^\]]*\] ", "", str(error).strip()).partition("\n")[0].partition(". ")[0]

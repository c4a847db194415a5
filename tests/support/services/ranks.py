"""Ranks of a learner in the threads of one process, which need no network."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

import torch
from torch import Tensor

from penstock.learning.ranks.ranks import part_of
from tests.support.machine.timing import PATIENCE_S

T = TypeVar("T")


class RankInThread:
    """One of several ranks; implements `learning.ranks.ranks.Ranks`."""

    alone = False

    def __init__(self, rank: int, given: list[Tensor], meeting: threading.Barrier) -> None:
        self._rank, self._given, self._meeting = rank, given, meeting
        self.sums = 0

    def own(self, count: int) -> slice:
        return part_of(count, self._rank, len(self._given))

    def add(self, values: Tensor) -> None:
        self.sums += 1
        self._given[self._rank] = values.clone()
        self._meeting.wait(PATIENCE_S)
        total = torch.stack(self._given).sum(0)
        # No rank may give its next values before all have read these.
        self._meeting.wait(PATIENCE_S)
        values.copy_(total)

    def give_up(self) -> None:
        """Ends all waits for this rank and for the others."""
        self._meeting.abort()


def ranks_in_threads(count: int) -> list[RankInThread]:
    """Returns ranks that wait for one another, each for one thread."""
    given, meeting = [torch.empty(0)] * count, threading.Barrier(count)
    return [RankInThread(rank, given, meeting) for rank in range(count)]


def together(calls: Sequence[Callable[[], T]], ranks: Sequence[RankInThread] = ()) -> list[T]:
    """Returns the results of calls, each in a thread of its own. If one fails, no other waits for its rank."""
    with ThreadPoolExecutor(len(calls)) as threads:
        futures = [threads.submit(call) for call in calls]
        ended, _ = wait(futures, return_when=FIRST_EXCEPTION)
        failed = [future for future in ended if future.exception() is not None]
        for rank in ranks if failed else ():
            rank.give_up()
        return [future.result() for future in failed or futures]

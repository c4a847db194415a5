"""Ranks of a learner of which this process is rank 0, and the others are real `penstock learner` processes."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch.distributed as dist

from penstock.apps.ranks import leading
from penstock.config import Config
from penstock.learning.ranks.group import RankPlace
from penstock.learning.ranks.link import LeadingLink
from penstock.learning.run.session import Lead
from tests.support.machine.timing import start_patience_s
from tests.support.services.ports import free_ports
from tests.support.services.processes import Command


@dataclass(frozen=True, slots=True)
class Led:
    """Rank 0's connections, and the processes of the other ranks."""

    lead: Lead
    others: list[Command]

    @property
    def link(self) -> LeadingLink:
        assert self.lead.link is not None
        return self.lead.link


@contextmanager
def led(config: Config, count: int = 2, *options: str) -> Iterator[Led]:
    """Connects this process to further ranks on this host, with these options, up to a number of ranks."""
    (port,) = free_ports(1)
    config = config.changed({"learner": {"rank_timeout_s": start_patience_s()}})
    meeting = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
    }
    own = [f"--learner.device={config.learner.device}", f"--learner.rank-timeout-s={config.learner.rank_timeout_s}"]
    os.environ.update(meeting)
    try:
        with ExitStack() as stack:
            others = []
            for rank in range(1, count):
                variables = {**meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)}
                others.append(stack.enter_context(Command("learner", *own, *options, environment=variables)))
            yield Led(stack.enter_context(leading(config, RankPlace(0, count, 0, count))), others)
    finally:
        for name in meeting:
            del os.environ[name]
        if dist.is_initialized():
            dist.destroy_process_group()

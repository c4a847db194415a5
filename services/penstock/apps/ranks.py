"""The ranks of a learner: rank 0's connections to the others, and the main program of each other rank.

Rank 0 is the learner that all other services know. The others need no address but that at which torchrun lets them
meet, no environment and no folder: rank 0 sends them its settings, its state and every batch.
"""

import contextlib
import os
from collections.abc import Callable, Iterator

from penstock.algo.published import of_metadata, read_metadata, with_own_module
from penstock.config import Config, build, parse_toml
from penstock.config.foreign_code import code_of
from penstock.errors import ConfigurationError
from penstock.learning.durable import checkpoints
from penstock.learning.ranks.group import RankGroup, RankPlace, place_of
from penstock.learning.ranks.link import FollowingLink, LeadingLink
from penstock.learning.run.assembly import learner_of
from penstock.learning.run.session import Lead
from penstock.learning.step.batches import BatchFeed
from penstock.learning.step.devices import payload_memory, torch_device, use_threads
from penstock.machine.addresses import LOOPBACK
from penstock.process.service import SUPERVISED_VARIABLE, Service


def own_place() -> RankPlace:
    """Returns this process's place among the ranks. A learner that a launcher supervises has no others."""
    return RankPlace() if os.environ.get(SUPERVISED_VARIABLE) else place_of(os.environ)


def device_name(config: Config, place: RankPlace) -> tuple[str, int | None]:
    """Returns the name of the device and, for one of several ranks, the number of its GPU (`torch_device`).

    Raises `ConfigurationError` if several ranks of a host are to use one GPU.
    """
    name = config.learner.device
    if place.alone:
        return name, None
    if place.local_count > 1 and name.startswith("cuda:"):
        raise ConfigurationError(
            f"learner.device {name} is one GPU, and this host has {place.local_count} ranks of the learner; use cuda,"
            " so that each has its own"
        )
    return name, place.local_rank


@contextlib.contextmanager
def leading(config: Config, place: RankPlace, stopping: Callable[[], bool] = lambda: False) -> Iterator[Lead]:
    """Connects rank 0 to the other ranks inside the context, at whose end they end too.

    Raises `RankLost` if one does not come, or if this one is `stopping` before.
    """
    if place.alone:
        yield Lead()
        return
    device = torch_device(*device_name(config, place))
    group = RankGroup(place, device, config.learner.rank_timeout_s, stopping)
    with contextlib.closing(group):
        with contextlib.closing(LeadingLink(group)) as link:
            yield Lead(group, link)
        # Raises if a rank has ended before it knew of the end of the run.
        link.check()


def follow(config: Config, place: RankPlace) -> int:
    """Trains on rank 0's batches until rank 0 ends the run, and returns the exit code.

    Rank 0 also decides what a signal stops.

    Raises `RankLost` if another rank ends early, `ConfigurationError` if the device can't be used, and `ForeignCode` if
    rank 0's policy names another module than this rank's `policy.module`.
    """
    settings = config.learner
    # No other service needs an address of this rank.
    with Service("learner", config.changed({"learner": {"listen": f"{LOOPBACK}:0", "metrics_port": 0}})) as service:
        logger = service.logger.bind(rank=place.rank)
        device = torch_device(*device_name(config, place))
        use_threads(settings.threads)
        group = RankGroup(place, device, settings.rank_timeout_s, lambda: service.stopping)
        with (
            # Also after an error: threads of gloo that outlive the interpreter abort the process.
            contextlib.closing(group),
            contextlib.closing(BatchFeed(device)) as feed,
            contextlib.closing(FollowingLink(group, feed.arrived, payload_memory(device))) as link,
        ):
            logger.info("ranks connected", device=str(device), ranks=place.count)
            opening = link.opening()
            if opening is not None:
                description = with_own_module(of_metadata(read_metadata(opening.checkpoint)), config.policy.module)
                # Rank 0 chooses everything but the code that this process imports, and computes priorities alone.
                own = code_of(config)
                own["policy"]["module"], own["sampling"]["priority"] = description.network.module, None
                settings_of_all = build(parse_toml(opening.config)).changed(own)
                learner = learner_of(settings_of_all, description.spec, device, group, description.network)
                checkpoints.load(learner, opening.checkpoint)
                logger.info("policy built", parameters=learner.parameters.numel(), execution=learner.execution)
                for task in link.tasks():
                    learner.train(feed.tensors(task.batch), task.progress)
        return service.stop_code

"""The addresses and ports of the services of a run on one machine, and the options that set them."""

from dataclasses import dataclass
from pathlib import Path

from penstock.config import Config
from penstock.local.actors import HOST
from penstock.local.ports import free_ports
from penstock.run_folder import RunFolder, of_service, replay_services


@dataclass(frozen=True, slots=True)
class Places:
    """Addresses (host:port) of the services, with the metrics ports of replays and actors, and their shared options."""

    learner: str
    evaluator: str
    replays: list[tuple[str, int]]
    actors: list[tuple[str, int]]
    options: list[str]

    @property
    def replay_names(self) -> list[str]:
        """Names of the replay services."""
        return replay_services(len(self.replays))

    @property
    def named(self) -> dict[str, str]:
        """Addresses of all services other than actors, by name."""
        replays = dict(zip(self.replay_names, (address for address, _ in self.replays), strict=True))
        return {**replays, "learner": self.learner, "evaluator": self.evaluator}

    def replay_options(self, shard: int, config: Config, folder: RunFolder) -> list[str]:
        """Returns the options that apply only to this replay service."""
        address, metrics_port = self.replays[shard]
        roots = folder.replay, Path(config.replay.snapshot_folder or folder.snapshots)
        store, snapshots = (of_service(root, self.replay_names[shard], len(self.replays)) for root in roots)
        return [
            f"--replay.listen={address}",
            f"--replay.metrics-port={metrics_port}",
            f"--replay.folder={store}",
            # Outside the store's folder, which is removed when the run is finished.
            f"--replay.snapshot-folder={snapshots}",
        ]


def choose_places(folder: RunFolder, shards: int, actors: int) -> Places:
    """Chooses free ports for the services of a run, with `shards` replay services and `actors` first actors."""
    # In one call: a chosen port stays free until its service starts, so a second call could return it again.
    ports = free_ports(4 + 2 * (shards + actors))
    learner, evaluator, *others = (f"{HOST}:{port}" for port in [*ports[:2], *ports[4::2]])
    pairs = list(zip(others, ports[5::2], strict=True))
    replays = pairs[:shards]
    settings = {
        "run.dir": folder.root,
        "learner.listen": learner,
        "learner.replay-addresses": ",".join(address for address, _ in replays),
        "learner.metrics-port": ports[2],
        "evaluation.listen": evaluator,
        "evaluation.learner-address": learner,
        "evaluation.metrics-port": ports[3],
        "actor.learner-address": learner,
    }
    options = ["--config", str(folder.config), *(f"--{name}={value}" for name, value in settings.items())]
    return Places(learner, evaluator, replays, pairs[shards:], options)

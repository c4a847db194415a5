"""The addresses and ports of the services of a run on one machine, and the options that set them."""

from dataclasses import dataclass
from pathlib import Path

from penstock.config import Config
from penstock.local.actors import HOST
from penstock.local.ports import free_ports
from penstock.run_folder import RunFolder, of_service, replay_services


@dataclass(frozen=True, slots=True)
class Places:
    """Addresses (host:port) of the services, and their shared options."""

    learner: str
    evaluator: str
    replays: list[str]
    actors: list[str]
    options: list[str]

    @property
    def replay_names(self) -> list[str]:
        """Names of the replay services."""
        return replay_services(len(self.replays))

    @property
    def named(self) -> dict[str, str]:
        """Addresses of all services other than actors, by name."""
        replays = dict(zip(self.replay_names, self.replays, strict=True))
        return {**replays, "learner": self.learner, "evaluator": self.evaluator}

    def replay_options(self, shard: int, config: Config, folder: RunFolder, stores: Path) -> list[str]:
        """Returns the options that apply only to this replay service; `stores` is the place of the run's stores."""
        roots = stores, Path(config.replay.snapshot_folder or folder.snapshots)
        store, snapshots = (of_service(root, self.replay_names[shard], len(self.replays)) for root in roots)
        return [
            f"--replay.listen={self.replays[shard]}",
            "--replay.advertise=",
            f"--replay.folder={store}",
            # Outside the store's folder, which is removed when the run is finished.
            f"--replay.snapshot-folder={snapshots}",
        ]


def choose_places(config: Config, folder: RunFolder, actors: int) -> Places:
    """Chooses free ports for the services of a run with this number of first actors."""
    shards = config.train.replay_shards
    # In one call: a chosen port stays free until its service starts, so a second call could return it again.
    learner, evaluator, *others = (f"{HOST}:{port}" for port in free_ports(2 + shards + actors))
    replays = others[:shards]
    # Not in the run's config.toml, because the next session of the run may be on another node.
    node = {f"telemetry.{name}": value for name in ("node", "job") if (value := getattr(config.telemetry, name))}
    settings = {
        "run.dir": folder.root,
        "learner.listen": learner,
        "learner.advertise": "",
        "learner.replay-addresses": ",".join(replays),
        "evaluation.listen": evaluator,
        "evaluation.learner-address": learner,
        "actor.learner-address": learner,
        **node,
        **{f"{section}.metrics-port": "auto" for section in ("replay", "learner", "actor", "evaluation")},
    }
    options = ["--config", str(folder.config), *(f"--{name}={value}" for name, value in settings.items())]
    return Places(learner, evaluator, replays, others[shards:], options)

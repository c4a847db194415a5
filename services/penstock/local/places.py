"""The addresses of the services of a run on one machine, and the options that set them."""

from dataclasses import dataclass
from pathlib import Path

from penstock.config import Config
from penstock.local.sockets import Sockets
from penstock.runs.folder import LEARNER, RunFolder, of_service, replay_services


@dataclass(frozen=True, slots=True)
class Places:
    """Addresses of all services other than actors by name, the names of the replay services, and shared options."""

    named: dict[str, str]
    replay_names: list[str]
    options: list[str]

    def replay_options(self, shard: int, config: Config, folder: RunFolder, stores: Path) -> list[str]:
        """Returns the options that apply only to this replay service; `stores` is the place of the run's stores."""
        roots = stores, Path(config.replay.snapshot_folder or folder.snapshots)
        name = self.replay_names[shard]
        store, snapshots = (of_service(root, name, len(self.replay_names)) for root in roots)
        return [
            f"--replay.listen={self.named[name]}",
            "--replay.advertise=",
            f"--replay.folder={store}",
            # Outside the store's folder, which is removed when the run is finished.
            f"--replay.snapshot-folder={snapshots}",
        ]


def choose_places(config: Config, folder: RunFolder, sockets: Sockets) -> Places:
    """Returns the places of the services of a run."""
    replays = replay_services(config.train.replay_shards)
    named = {name: sockets.address(name) for name in (*replays, LEARNER, "evaluator")}
    # Not in the run's config.toml, because the next session of the run may be on another node.
    node = {f"telemetry.{name}": value for name in ("node", "job") if (value := getattr(config.telemetry, name))}
    settings = {
        "run.dir": folder.root,
        "learner.listen": named[LEARNER],
        "learner.advertise": "",
        "learner.replay-addresses": ",".join(named[name] for name in replays),
        "evaluation.listen": named["evaluator"],
        "evaluation.learner-address": named[LEARNER],
        "actor.learner-address": named[LEARNER],
        **node,
        **{f"{section}.metrics-port": "auto" for section in ("replay", "learner", "actor", "evaluation")},
    }
    options = ["--config", str(folder.config), *(f"--{name}={value}" for name, value in settings.items())]
    return Places(named, replays, options)

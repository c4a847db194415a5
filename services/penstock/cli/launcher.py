"""A whole run on one machine: the services as child processes on loopback gRPC, watched until the learner is done."""

import contextlib
import dataclasses
import json
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from penstock.algo.spaces import check_spaces
from penstock.apps.environments import make_of
from penstock.cli.actor_count import ActorCount
from penstock.cli.actors import HOST, Actors
from penstock.cli.children import Child, Children, free_ports
from penstock.cli.plot import draw
from penstock.config import Config
from penstock.errors import ConfigurationError, PenstockError, Unavailable
from penstock.files import restored_after, write_atomically
from penstock.rpc.health import is_serving
from penstock.rpc.loop import LoopThread
from penstock.rpc.status_client import StatusClient
from penstock.run_folder import RunFolder
from penstock.summary import Summary
from penstock.types import RunStatus

_POLL_S = 0.2
_STATUS_TIMEOUT_S = 1.0
_START_TIMEOUT_S = 120.0
_LIVE_TIMEOUT_S = 1.0

Observer = Callable[[RunStatus, list[str]], None]
"""Called a few times a second with the run's status and what there is to tell."""


def train(
    config: Config,
    *,
    resume: bool = False,
    observer: Observer = lambda status, news: None,
    started: float | None = None,
) -> Summary:
    """Trains an agent with this configuration, and returns what came out.

    Args:
        config: All settings; addresses and ports of services are chosen here.
        resume: Go on with the run in `config.run.dir`.
        observer: Called a few times a second.
        started: When the command began, by `time.monotonic`; now, if left out.

    Raises:
        ConfigurationError: The environment, the folder or a setting can't be used.
        PenstockError: A service died too often, or there is no summary in the end.
        KeyboardInterrupt: Ctrl-C; a checkpoint was saved and all processes have ended.
    """
    started = time.monotonic() if started is None else started
    _check_environment(config)
    config = with_run_dir(config)
    folder = _prepare_folder(config, resume=resume)
    thread = LoopThread()
    try:
        with _undone_if_refused(folder), Children(config.train.max_restarts) as children:
            write_atomically(folder.config, config.repeatable().to_toml().encode())
            folder.summary.unlink(missing_ok=True)
            count = ActorCount(config.train.least_actors) if config.train.actors == "auto" else None
            first = count.wanted if count else config.train.least_actors
            places = _choose_places(folder, config.train.replay_shards, first)
            actors = _start(config, folder, places, count, children)
            try:
                _watch(config, places, children, actors, thread, observer)
            finally:
                # The learner saves its checkpoint while the others still answer.
                children.stop("learner")
    finally:
        folder.services.unlink(missing_ok=True)
        thread.close()
    return _conclude(folder, started)


def with_run_dir(config: Config) -> Config:
    """The configuration with its run's folder, which is named after environment and time if it was left open."""
    if config.run.dir is not None:
        return config
    name = config.environment.id.replace("/", "-").replace(":", "-")
    return config.changed({"run": {"dir": str(Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}")}})


def _check_environment(config: Config) -> None:
    """Fails here, in one line, rather than in a child's log."""
    environment = config.environment
    training = [environment.training_variants] if environment.training_kwargs else []
    for variants in [environment.variant_kwargs, *training]:
        environments = make_of(environment, len(variants), variants)
        try:
            check_spaces(environments.spec)
        finally:
            environments.close()


def _prepare_folder(config: Config, *, resume: bool) -> RunFolder:
    folder = RunFolder(Path(config.run.dir or "."))
    if not resume and folder.config.exists():
        raise ConfigurationError(
            f"{folder.root} holds a run already; go on with it by --resume {shlex.quote(str(folder.root))}, or choose"
            " another --run-dir"
        )
    if folder.services.exists() and _answers(folder):
        raise ConfigurationError(f"the run in {folder.root} is still going on; stop it first, or wait for its end")
    folder.create()
    return folder


def _answers(folder: RunFolder) -> bool:
    """Whether any service of the run is there: its launcher may be gone already, and two runs in one folder would write
    over each other.
    """
    return any(is_serving(address, _LIVE_TIMEOUT_S) for address in json.loads(folder.services.read_text()).values())


@contextlib.contextmanager
def _undone_if_refused(folder: RunFolder) -> Iterator[None]:
    """Puts settings and summary back as they were if a child refuses the settings: a mistake in an option must neither
    spoil a run nor make one of a new folder.
    """
    is_new = not folder.config.exists()
    try:
        with restored_after(ConfigurationError, folder.config, folder.summary):
            yield
    except ConfigurationError:
        if is_new:
            shutil.rmtree(folder.replay, ignore_errors=True)
        raise


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the services of a run are on this machine: host:port of each, and the options that tell them so."""

    learner: str
    evaluator: str
    replays: list[tuple[str, int]]
    """Of each replay service, and the port of its metrics."""
    actors: list[tuple[str, int]]
    """Of each of the first actors, and the port of its metrics."""
    options: list[str]

    @property
    def replay_names(self) -> list[str]:
        """What the replay services are called: by numbers, where there are several."""
        return ["replay"] if len(self.replays) == 1 else [f"replay-{shard}" for shard in range(len(self.replays))]


def _choose_places(folder: RunFolder, shards: int, actors: int) -> _Places:
    # All at once, since what is chosen is not taken yet.
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
    options = [f"--{name}={value}" for name, value in settings.items()]
    return _Places(learner, evaluator, replays, pairs[shards:], options)


def _start(config: Config, folder: RunFolder, places: _Places, count: ActorCount | None, children: Children) -> Actors:
    settings = ["--config", str(folder.config), *places.options]
    addresses, arguments = {}, {}
    for name, (address, metrics_port) in zip(places.replay_names, places.replays, strict=True):
        addresses[name] = address
        store, snapshots = folder.replay, Path(config.replay.snapshot_folder or folder.snapshots)
        if len(places.replays) > 1:
            store, snapshots = store / name, snapshots / name
        own = [f"--replay.listen={address}", f"--replay.metrics-port={metrics_port}", f"--replay.folder={store}"]
        # Not within the store's folder, which goes when the run is finished.
        own.append(f"--replay.snapshot-folder={snapshots}")
        if config.replay.restore is not None:
            own.append(f"--replay.restore={config.replay.restore}")
        arguments[name] = ["replay", *settings, *own]
    addresses |= {"learner": places.learner, "evaluator": places.evaluator}
    arguments |= {name: [name, *settings] for name in ("learner", "evaluator")}
    # All are listed before any is started, so that a launcher that dies leaves a list of what may be left.
    actors = Actors(places.actors, count, children, folder, settings, addresses)
    for name in addresses:
        children.add(Child(name, arguments[name], folder.logs / f"{name}.log"))
    actors.start()
    return actors


def _watch(
    config: Config, places: _Places, children: Children, actors: Actors, thread: LoopThread, observer: Observer
) -> None:
    """Until the learner has ended well: keeps the children alive and the observer informed."""
    _await_health(config, places, children, observer)
    client = StatusClient(thread, places.learner)
    learner, status = children.find("learner"), RunStatus(total_steps=config.run.total_steps)
    try:
        while learner.exit_code != 0:
            news = children.revive()
            try:
                status = client.get(_STATUS_TIMEOUT_S)
            except Unavailable:
                status = dataclasses.replace(status, waiting_for="the learner")
            observer(status, [*news, *actors.adapt(status)])
            time.sleep(_POLL_S)
        observer(dataclasses.replace(status, phase="finished", waiting_for=""), [])
    finally:
        client.close()


def _await_health(config: Config, places: _Places, children: Children, observer: Observer) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    replays = zip(places.replay_names, (address for address, _ in places.replays), strict=True)
    for name, address in (*replays, ("learner", places.learner)):
        # A run that had nothing left to do may end before anybody sees it serve.
        while not is_serving(address, _POLL_S) and children.find("learner").exit_code != 0:
            status = RunStatus(total_steps=config.run.total_steps, waiting_for=f"the {name} service to start")
            observer(status, children.revive())
            if time.monotonic() > deadline:
                raise PenstockError(f"{name} did not become ready: {children.find(name).complaint()}")
            time.sleep(0.02)


def _conclude(folder: RunFolder, started: float) -> Summary:
    if not folder.summary.exists():
        raise PenstockError(f"the run ended without a summary; its logs are in {folder.logs}")
    if folder.metrics.exists():
        draw([folder], folder.learning_curve)
    summary = dataclasses.replace(Summary.read(folder.summary), wall_s=time.monotonic() - started)
    summary.write(folder.summary)
    if summary.stopped != "interrupted":
        # A finished run starts its next session, if there is one, from new experience.
        shutil.rmtree(folder.replay, ignore_errors=True)
    return summary

"""A whole run on one machine: the services as child processes on loopback gRPC, watched until the learner is done."""

import dataclasses
import shutil
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from penstock.acting.environments import make_environments
from penstock.algo.spaces import check_spaces
from penstock.cli.children import Child, Children, free_ports
from penstock.config import Config, build, merge
from penstock.errors import ConfigurationError, PenstockError, Unavailable
from penstock.rpc.health import is_serving
from penstock.rpc.loop import LoopThread
from penstock.rpc.run_client import StatusClient
from penstock.run_folder import RunFolder, write_atomically, write_json
from penstock.summary import Summary
from penstock.types import RunStatus

_POLL_S = 0.2
_STATUS_TIMEOUT_S = 1.0
_START_TIMEOUT_S = 120.0
_HOST = "127.0.0.1"

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
    config = _localised(config, folder)
    write_atomically(folder.config, config.to_toml().encode())
    folder.summary.unlink(missing_ok=True)
    thread = LoopThread()
    try:
        with Children(config.train.max_restarts) as children:
            _start(config, folder, children)
            try:
                _watch(config, children, thread, observer)
            finally:
                # The learner saves its checkpoint while the others still answer.
                children.stop("learner")
    finally:
        thread.close()
    return _conclude(folder, time.monotonic() - started)


def with_run_dir(config: Config) -> Config:
    """The configuration with its run's folder, which is named after environment and time if it was left open."""
    if config.run.dir is not None:
        return config
    name = config.environment.id.replace("/", "-").replace(":", "-")
    return _changed(config, {"run": {"dir": str(Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}")}})


def _changed(config: Config, values: dict[str, object]) -> Config:
    return build(merge(config.model_dump(exclude_none=True), values))


def _check_environment(config: Config) -> None:
    """Fails here, in one line, rather than in a child's log."""
    environment = config.environment
    environments = make_environments(
        environment.id,
        1,
        kwargs=environment.kwargs,
        imports=environment.imports,
        vectorization=environment.vectorization,
    )
    try:
        check_spaces(environments.spec)
    finally:
        environments.close()


def _prepare_folder(config: Config, *, resume: bool) -> RunFolder:
    folder = RunFolder(Path(config.run.dir or "."))
    if not resume and folder.config.exists():
        raise ConfigurationError(
            f"{folder.root} holds a run already; go on with it by --resume {folder.root}, or choose another --run-dir"
        )
    folder.create()
    return folder


def _localised(config: Config, folder: RunFolder) -> Config:
    """The configuration with this machine's free ports in it."""
    learner, replay, evaluation, *metrics = (f"{_HOST}:{port}" for port in free_ports(6))
    ports = [int(address.rpartition(":")[2]) for address in metrics]
    places: dict[str, object] = {
        "run": {"dir": str(folder.root)},
        "learner": {"listen": learner, "replay_address": replay, "metrics_port": ports[0]},
        "replay": {"listen": replay, "folder": str(folder.replay), "metrics_port": ports[1]},
        "evaluation": {"listen": evaluation, "learner_address": learner, "metrics_port": ports[2]},
        "actor": {"learner_address": learner},
    }
    return _changed(config, places)


def _start(config: Config, folder: RunFolder, children: Children) -> None:
    ports = free_ports(2 * config.train.actors)
    addresses = {
        "replay": config.replay.listen,
        "learner": config.learner.listen,
        "evaluator": config.evaluation.listen,
    }
    settings = ["--config", str(folder.config)]
    for name in addresses:
        children.add(Child(name, [name, *settings], folder.logs / f"{name}.log"))
    for number in range(config.train.actors):
        name = f"actor-{number}"
        listen, metrics = f"{_HOST}:{ports[2 * number]}", ports[2 * number + 1]
        arguments = ["actor", *settings, "--actor.listen", listen, "--actor.metrics-port", str(metrics)]
        addresses[name] = listen
        children.add(Child(name, arguments, folder.logs / f"{name}.log"))
    write_json(folder.services, addresses)


def _watch(config: Config, children: Children, thread: LoopThread, observer: Observer) -> None:
    """Until the learner has ended well: keeps the children alive and the observer informed."""
    _await_health(config, children, observer)
    client = StatusClient(thread, config.learner.listen)
    learner, status = children.find("learner"), RunStatus(total_steps=config.run.total_steps)
    try:
        while learner.exit_code != 0:
            news = children.revive()
            try:
                status = client.get(_STATUS_TIMEOUT_S)
            except Unavailable:
                status = dataclasses.replace(status, waiting_for="the learner")
            observer(status, news)
            time.sleep(_POLL_S)
    finally:
        client.close()


def _await_health(config: Config, children: Children, observer: Observer) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    for name, address in (("replay", config.replay.listen), ("learner", config.learner.listen)):
        while not is_serving(address, _POLL_S):
            observer(RunStatus(total_steps=config.run.total_steps, waiting_for=f"the {name} service to start"), [])
            children.revive()
            if time.monotonic() > deadline:
                raise PenstockError(f"{name} did not become ready: {children.find(name).complaint()}")
            time.sleep(0.02)


def _conclude(folder: RunFolder, wall_s: float) -> Summary:
    if not folder.summary.exists():
        raise PenstockError(f"the run ended without a summary; its logs are in {folder.logs}")
    summary = dataclasses.replace(Summary.read(folder.summary), wall_s=wall_s)
    summary.write(folder.summary)
    folder.services.unlink(missing_ok=True)
    if summary.stopped != "interrupted":
        # A finished run starts its next session, if there is one, from new experience.
        shutil.rmtree(folder.replay, ignore_errors=True)
    return summary

"""The files of all engines: their settings exist, agree with each other, and confine the containers."""

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.config import Config, setting_names
from penstock.rpc.ready_file import INTERVAL_S
from tests.deploy.engines import ENGINES, ROOT, Container
from tests.rules import for_each
from tests.support.machine.timing import PATIENCE_S

DEPLOYED = {engine: read() for engine, read in ENGINES.items()}
EACH = [each for containers in DEPLOYED.values() for each in containers.values()]
CONTAINERS = [pytest.param(each, id=str(each)) for each in EACH]
OWN: dict[str, set[str]] = {
    # A stack stays, and its tasks must end with the run. Swarm knows the node and the task of a container.
    # Its number of actors has no default in Compose, and each engine has its own command.
    # docker-compose.yml is for a host with a GPU; here an override adds one, and its device.
    "swarm": {
        "replay.stop_with_run",
        "telemetry.node",
        "telemetry.job",
        "learner.expected_actors",
        "learner.actors_command",
        "learner.device",
    },
    "kubernetes": {
        # Pods have longer names, and tell them to the learner.
        "learner.replay_addresses",
        "actor.learner_address",
        "evaluation.learner_address",
        "replay.advertise",
        "learner.advertise",
        # The kubelet asks gRPC's health service, and can't use TLS.
        "telemetry.ready_file",
        "replay.health_listen",
        "learner.health_listen",
        # A NetworkPolicy admits ports by their number.
        "replay.stream_port",
        "learner.stream_port",
        # As in a swarm.
        "learner.device",
        # It tells a pod its node and its name.
        "telemetry.node",
        "telemetry.job",
        "learner.expected_actors",
        "learner.actors_command",
    },
}
"""Settings by engine in which it differs from Compose, for the reason given."""
STORE_SPARE_BYTES = 200 * 2**20


def flat(config: Config) -> dict[str, Any]:
    return {name: getattr(getattr(config, name.partition(".")[0]), name.partition(".")[2]) for name in setting_names()}


def beside(container: Container, service: str) -> Container:
    return DEPLOYED[container.engine][service]


def section(container: Container) -> Any:
    return getattr(container.config, {"evaluator": "evaluation"}.get(container.service, container.service))


@for_each("container", CONTAINERS)
def test_settings_are_those_of_compose(container: Container) -> None:
    reference = flat(DEPLOYED["compose"][container.service].config)
    different = {name for name, value in flat(container.config).items() if value != reference[name]}
    assert different <= OWN.get(container.engine, set())


@for_each("engine", ENGINES)
def test_the_settings_that_are_an_engines_own_do_differ(engine: str) -> None:
    references = {service: flat(container.config) for service, container in DEPLOYED["compose"].items()}
    differing = {
        name
        for service, container in DEPLOYED[engine].items()
        for name, value in flat(container.config).items()
        if value != references[service][name]
    }
    assert differing == OWN.get(engine, set())


@for_each("container", CONTAINERS)
def test_the_image_of_a_service_can_run_it(container: Container) -> None:
    assert container.arguments[0] == container.service
    # Without an override, a learner of Compose uses a GPU.
    of_gpu = (container.engine, container.service) == ("compose", "learner")
    assert container.image == ("penstock-learner" if of_gpu else "penstock-actor")


@for_each("container", CONTAINERS)
def test_services_serve_metrics_where_prometheus_scrapes(container: Container) -> None:
    assert section(container).listen.startswith("0.0.0.0:")
    jobs = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
    [scraped] = [job["dns_sd_configs"][0] for job in jobs if job["job_name"] == container.service]
    assert scraped["port"] == section(container).metrics_port
    if container.engine != "kubernetes":
        # There, Prometheus finds pods by their labels.
        assert scraped["names"] == [container.host]


@for_each("container", CONTAINERS)
def test_services_have_the_addresses_of_each_other(container: Container) -> None:
    config = container.config
    replay, learner = (
        f"{beside(container, each).host}:{section(beside(container, each)).listen.rpartition(':')[2]}"
        for each in ("replay", "learner")
    )
    assert config.learner.replay_addresses == (replay,)
    assert config.actor.learner_address == config.evaluation.learner_address == (learner,)


@pytest.mark.parametrize("container", [pytest.param(each, id=str(each)) for each in EACH if each.probe])
@pytest.mark.parametrize(("age_s", "healthy"), [(0.0, True), (2 * INTERVAL_S, True), (3600.0, False), (None, False)])
def test_a_container_is_healthy_while_its_service_touches_its_file(
    container: Container, age_s: float | None, healthy: bool, tmp_path: Path
) -> None:
    file, named = tmp_path / "ready", str(container.config.telemetry.ready_file)
    if age_s is not None:
        file.touch()
        os.utime(file, (time.time() - age_s,) * 2)
    assert named in container.probe
    check = ["/bin/sh", "-c", container.probe.replace(named, str(file))]
    assert (subprocess.run(check, timeout=PATIENCE_S, check=False).returncode == 0) is healthy


@for_each("engine", ENGINES)
def test_the_learner_alone_can_write_its_runs(engine: str) -> None:
    # Others run the environments' code.
    writers = {
        service
        for service, container in DEPLOYED[engine].items()
        for path, volume in container.volumes.items()
        if path.startswith("/var/lib/penstock/runs") and not volume.endswith(":ro")
    }
    assert writers == {"learner"}


@for_each("container", CONTAINERS)
def test_containers_are_confined(container: Container) -> None:
    assert (container.user, container.read_only, container.dropped) == ("10001:10001", True, ("ALL",))
    assert not container.published
    assert container.grace_s >= 30.0


@for_each("engine", ENGINES)
def test_the_store_fits_into_the_memory_limits_and_volume(engine: str) -> None:
    replay, learner = DEPLOYED[engine]["replay"], DEPLOYED[engine]["learner"]
    store = replay.config.replay
    assert replay.memory_bytes >= store.store_size.amount + STORE_SPARE_BYTES
    # Batches read from the store are its pages, which count for the learner too.
    assert learner.memory_bytes > store.store_size.amount
    [(path, volume)] = replay.volumes.items()
    assert str(store.folder).startswith(f"{path}/")
    if engine == "kubernetes":
        # A volume of one node may not be the learner's.
        assert path not in learner.volumes
        return
    assert learner.volumes[path] == f"{volume}:ro"


@for_each("engine", ENGINES)
def test_the_run_is_in_a_volume_and_actors_have_none(engine: str) -> None:
    learner = DEPLOYED[engine]["learner"]
    [path] = [path for path, volume in learner.volumes.items() if not volume.endswith((":ro", "compiled"))]
    assert str(learner.config.run.dir).startswith(f"{path}/")
    # An actor may be on any node, where the volume would be another one.
    assert not DEPLOYED[engine]["actor"].volumes


def test_variables_are_settings() -> None:
    names = {f"PENSTOCK__{name.replace('.', '__').upper()}" for name in setting_names()}
    given = {name for container in EACH for name in container.environment}
    assert {name for name in given if name.startswith("PENSTOCK__")} <= names

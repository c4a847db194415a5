"""The Compose files: their settings exist, match each other, and confine the containers."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.timing import PATIENCE_S
from penstock.cli.options import parse
from penstock.config import Config, build, setting_names
from penstock.local.variables import OF_COMPOSE, PRESET
from penstock.rpc.ready_file import INTERVAL_S

ROOT = Path(__file__).parents[2]
SERVICES = ("replay", "learner", "actor", "evaluator")
DEFAULTS = build({})
UNITS = {"g": 2**30, "m": 2**20}


def compose(name: str = "docker-compose.yml") -> Any:
    """Reads a file as `docker compose` does without .env and without variables. Defaults may be nested once."""
    text = (ROOT / name).read_text().replace("!reset null", "null")
    inner = re.sub(r"\$\{\w+:?-([^{}]*)\}", r"\1", text)
    return yaml.safe_load(re.sub(r"\$\{\w+:?-([^{}]*)\}", r"\1", inner))


STACK = compose()


def settings_of(service: str, monkeypatch: pytest.MonkeyPatch) -> Config:
    for name in [name for name in os.environ if name.startswith("PENSTOCK")]:
        monkeypatch.delenv(name)
    for name, value in STACK["services"][service]["environment"].items():
        monkeypatch.setenv(name, str(value))
    command, *options = STACK["services"][service]["command"]
    assert command == service
    return parse(f"penstock {service}", "", options, trains=False).config


@pytest.mark.parametrize(("age_s", "healthy"), [(0.0, True), (2 * INTERVAL_S, True), (3600.0, False), (None, False)])
def test_a_container_is_healthy_while_its_service_touches_its_file(
    age_s: float | None, healthy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, check = STACK["services"]["actor"]["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    file = tmp_path / "ready"
    if age_s is not None:
        file.touch()
        os.utime(file, (time.time() - age_s,) * 2)
    shown = check.replace("$$", "$").replace(str(settings_of("actor", monkeypatch).telemetry.ready_file), str(file))
    assert (subprocess.run(["/bin/sh", "-c", shown], timeout=PATIENCE_S, check=False).returncode == 0) is healthy


def bytes_of(limit: str) -> int:
    return int(limit[:-1]) * UNITS[limit[-1]]


@pytest.mark.parametrize("dockerfile", ["Dockerfile.actor", "Dockerfile.learner"])
def test_hadolint_finds_nothing(dockerfile: str) -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    subprocess.run([hadolint, ROOT / dockerfile], check=True, timeout=PATIENCE_S)


@pytest.mark.parametrize("service", SERVICES)
def test_services_read_their_settings_and_serve_metrics_where_prometheus_scrapes(
    service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings_of(service, monkeypatch)
    own = getattr(config, {"evaluator": "evaluation"}.get(service, service))
    assert own.listen.startswith("0.0.0.0:")
    assert f"find {config.telemetry.ready_file} " in STACK["services"][service]["healthcheck"]["test"][-1]
    jobs = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
    scraped = {job["job_name"]: job["dns_sd_configs"][0] for job in jobs}[service]
    assert (scraped["names"], scraped["port"]) == ([service], own.metrics_port)


@pytest.mark.parametrize("service", SERVICES)
def test_services_have_the_addresses_of_each_other(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings_of(service, monkeypatch)
    replay, learner = (settings_of(each, monkeypatch) for each in ("replay", "learner"))
    assert config.learner.replay_addresses == (f"replay:{replay.replay.listen.rpartition(':')[2]}",)
    assert config.actor.learner_address == config.evaluation.learner_address
    assert config.actor.learner_address == f"learner:{learner.learner.listen.rpartition(':')[2]}"


@pytest.mark.parametrize("service", SERVICES)
def test_services_are_confined(service: str) -> None:
    definition = STACK["services"][service]
    assert (definition["read_only"], definition["init"], definition["user"], definition["cap_drop"]) == (
        True,
        True,
        "10001:10001",
        ["ALL"],
    )
    assert definition["security_opt"] == ["no-new-privileges:true"]
    assert "ports" not in definition
    assert definition["logging"]["options"]["max-size"]
    assert definition["stop_grace_period"] and definition["restart"] == "on-failure"


def test_the_store_fits_into_the_memory_limit_and_is_shared_with_the_learner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, services = settings_of("replay", monkeypatch), STACK["services"]
    assert bytes_of(services["replay"]["mem_limit"]) >= config.replay.store_size.amount + 200 * 2**20
    volume, target = services["replay"]["volumes"][0].split(":")
    assert str(config.replay.folder).startswith(f"{target}/")
    assert f"{volume}:{target}:ro" in services["learner"]["volumes"]
    # Batches read from the store are its pages, which count for the learner too.
    assert bytes_of(services["learner"]["mem_limit"]) > config.replay.store_size.amount


def test_the_restore_service_uses_the_folders_of_the_other_services(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    definition, services = STACK["services"]["restore"], STACK["services"]
    replay, learner = settings_of("replay", monkeypatch), settings_of("learner", monkeypatch)
    assert definition["environment"]["PENSTOCK__RUN__DIR"] == learner.run.dir
    assert definition["environment"]["PENSTOCK__REPLAY__SNAPSHOT_FOLDER"] == replay.replay.snapshots
    assert int(definition["environment"]["PENSTOCK__REPLAY__CAPACITY_BYTES"]) == replay.replay.store_size.amount
    assert set(definition["volumes"]) == {services["replay"]["volumes"][0], services["evaluator"]["volumes"][0]}
    # Only when it is asked for, and confined like the others.
    assert (definition["profiles"], definition["restart"]) == (["restore"], "no")
    assert definition["entrypoint"] == ["penstock", "replay", "restore"]
    assert (definition["read_only"], definition["user"], definition["cap_drop"]) == (True, "10001:10001", ["ALL"])


def test_the_learner_keeps_compiled_steps_in_a_volume_that_it_writes_and_gets_its_compiler_at_the_build() -> None:
    dockerfile, learner = (ROOT / "Dockerfile.learner").read_text(), STACK["services"]["learner"]
    (cache,) = re.findall(r"TORCHINDUCTOR_CACHE_DIR=(\S+)", dockerfile)
    writable = [volume.split(":")[1] for volume in learner["volumes"] if not volume.endswith(":ro")]
    assert str(Path(cache).parent) in writable
    # torch would otherwise compile into /tmp, from which a container's tmpfs lets nothing be executed.
    assert not cache.startswith("/tmp")
    (compiler,) = set(re.findall(r"^ARG (\w+)=", dockerfile, re.MULTILINE)) - {"TORCH_INDEX", "COMMIT"}
    assert learner["build"]["args"][compiler] == ""


def test_the_cpu_override_uses_the_image_of_the_actors() -> None:
    learner = compose("compose.cpu.yaml")["services"]["learner"]
    assert learner["image"] == STACK["services"]["actor"]["image"]
    assert learner["deploy"] is None and STACK["services"]["learner"]["deploy"]


@pytest.mark.parametrize("override", [None, "compose.cpu.yaml"])
def test_one_service_builds_each_image(override: str | None) -> None:
    services = {name: dict(definition) for name, definition in STACK["services"].items()}
    for name, definition in (compose(override)["services"] if override else {}).items():
        services[name] |= definition
    ours = [each for each in services.values() if each["image"].startswith("penstock-")]
    building = [each["image"] for each in ours if each.get("build")]
    assert sorted(building) == sorted({each["image"] for each in ours})


def test_the_example_env_file_contains_the_defaults_of_compose() -> None:
    asked = dict(re.findall(r"\$\{(\w+):?-([^{}]*)\}", (ROOT / "docker-compose.yml").read_text()))
    offered = dict(re.findall(r"^#([A-Z_]+)=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE))
    settings = {name for name in offered if name.startswith("PENSTOCK__")} - asked.keys()
    examples = {"COMPOSE_FILE", "PENSTOCK_PACKAGES", "PENSTOCK_RUN"}
    assert offered.keys() - settings == asked.keys() | examples
    for name in asked.keys() - examples:
        assert offered[name] == asked[name], name


def test_settings_in_the_example_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (ROOT / ".env.example").read_text().splitlines()
    for name, _, value in (line.lstrip("#").partition("=") for line in lines if line.startswith("#PENSTOCK__")):
        monkeypatch.setenv(name, value)
    config = parse("penstock actor", "", ["--preset=none"], trains=False).config
    assert (config.run.seed, config.environment.id) != (DEFAULTS.run.seed, DEFAULTS.environment.id)


def test_variables_of_compose_itself_are_not_settings() -> None:
    texts = [(ROOT / name).read_text() for name in ("docker-compose.yml", "compose.cpu.yaml", "compose.admin.yaml")]
    read = set(re.findall(r"\$\{(PENSTOCK_[A-Z]\w+)", "".join(texts)))
    assert read == {*OF_COMPOSE, PRESET}


def test_the_generated_settings_of_compose_are_current() -> None:
    module = runpy.run_path(str(ROOT / "deploy/compose/settings.py"))
    assert module["FILE"].read_text() == module["render"](), "run `make compose-settings`"


@pytest.mark.parametrize("service", SERVICES)
def test_every_setting_is_fixed_or_comes_from_the_shell(service: str) -> None:
    extended = STACK["services"][service]["extends"]
    listed = yaml.safe_load((ROOT / extended["file"]).read_text())["services"][extended["service"]]["environment"]
    names = {f"PENSTOCK__{name.replace('.', '__').upper()}" for name in (*Config.model_fields, *setting_names())}
    fixed = {name for each in SERVICES for name in STACK["services"][each]["environment"]}
    # An entry with a value would be stronger than the shell.
    assert set(listed) == names - fixed
    assert not any(name.startswith("PENSTOCK__") and name not in names for name in fixed)


def has_compose() -> bool:
    """Returns whether Docker Compose is installed. Reading a file needs no engine."""
    command = ["docker", "compose", "version"]
    return bool(shutil.which("docker")) and subprocess.run(command, capture_output=True, timeout=60).returncode == 0


@pytest.mark.skipif(not has_compose(), reason="needs Docker Compose, though no engine")
def test_settings_from_the_shell_override_those_of_the_env_file(tmp_path: Path) -> None:
    for name in ("docker-compose.yml", "compose.cpu.yaml", "deploy/compose/settings.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".env").write_text(
        "PENSTOCK__RUN__TOTAL_STEPS=1\nPENSTOCK__PPO__EPOCHS=7\nPENSTOCK__PPO__EPOCHZ=4\nPENSTOCK_PRESET=pendulum\n"
    )
    shell = {
        "PENSTOCK__RUN__TOTAL_STEPS": "3000000",
        "PENSTOCK__PPO": '{"minibatches": 2}',
        "PENSTOCK__LEARNER__LISTEN": "x:1",
    }
    others = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK", "COMPOSE"))}
    command = ["docker", "compose", "-f", "docker-compose.yml", "-f", "compose.cpu.yaml", "config", "--format=json"]
    shown = subprocess.run(
        command, cwd=tmp_path, env=others | shell, check=True, capture_output=True, text=True, timeout=120
    )
    for service in SERVICES:
        given = json.loads(shown.stdout)["services"][service]["environment"]
        assert given["PENSTOCK__RUN__TOTAL_STEPS"] == "3000000"
        assert given["PENSTOCK__PPO"] == shell["PENSTOCK__PPO"]
        assert given["PENSTOCK__LEARNER__LISTEN"] == "0.0.0.0:7432"
        # What only .env has; the service refuses the misspelt one.
        assert (given["PENSTOCK__PPO__EPOCHS"], given["PENSTOCK__PPO__EPOCHZ"]) == ("7", "4")
        assert given["PENSTOCK__PPO__MINIBATCHES"] is None


def test_the_build_context_contains_only_what_images_need() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        source
        for file in ("Dockerfile.actor", "Dockerfile.learner")
        for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / file).read_text(), re.MULTILINE)
        for source in sources.split()
    }
    assert kept == copied

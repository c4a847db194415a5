"""The Compose files: settings from the shell and .env, overrides, images, and what only Compose has."""

import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from penstock.cli.options import parse
from penstock.config import Config, build, setting_names
from penstock.local.variables import OF_COMPOSE
from penstock.presets import preset
from penstock.process.service import PRESET_VARIABLE
from penstock.runs.known import RUNS
from penstock.security.authority import files_of
from penstock.security.roles import ROLES
from tests.deploy import engines
from tests.deploy.engines import CERTIFICATES, ROOT, SERVICES, interpolated
from tests.rules import for_each
from tests.support.machine.timing import PATIENCE_S, wait_for

DEFAULTS = build({})
PRESETS = sorted(path.stem for path in (ROOT / "services/penstock/presets").glob("*.toml"))
ROLES_IN_ORDER = (*SERVICES, "operator")


STACK = interpolated("docker-compose.yml")


@for_each("dockerfile", ["Dockerfile.actor", "Dockerfile.learner"])
def test_hadolint_finds_nothing(dockerfile: str) -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    subprocess.run([hadolint, ROOT / dockerfile], check=True, timeout=PATIENCE_S)


@for_each("service", SERVICES)
def test_services_are_confined_further_than_other_engines_can(service: str) -> None:
    definition = STACK["services"][service]
    assert definition["init"]
    assert definition["security_opt"] == ["no-new-privileges:true"]
    assert definition["logging"]["options"]["max-size"]
    assert definition["restart"] == "on-failure"
    assert definition["pids_limit"]


def test_each_service_sees_the_certificate_of_its_own_role_alone() -> None:
    volumes = {name: definition.get("volumes", ()) for name, definition in STACK["services"].items()}
    mounted = {
        name: [each for each in of if "certificate" in each or "authority" in each] for name, of in volumes.items()
    }
    folder = "/var/lib/penstock/certificates"
    for name in ("certificates", "renewal"):
        makes = mounted.pop(name)
        assert makes == [f"authority:{folder}", *(f"{role}-certificate:{folder}/{role}" for role in ROLES_IN_ORDER)]
    role_of = {name: name for name in ROLES} | {"runs": "operator"}
    assert mounted == {
        name: [f"{role_of[name]}-certificate:{CERTIFICATES}:ro"] if name in role_of else []
        for name in STACK["services"].keys() - {"certificates", "renewal"}
    }


def test_certificates_are_renewed_daily_in_the_folder_where_they_were_made(tmp_path: Path) -> None:
    renewal = STACK["services"]["renewal"]
    assert renewal["restart"] == "unless-stopped"
    shell, option, script, interval = renewal["entrypoint"]
    assert (shell, option, int(interval)) == ("sh", "-c", 24 * 60 * 60)
    folder = STACK["services"]["certificates"]["command"][-1]
    # Compose reads $$ as $.
    looped = script.replace("$$", "$").replace(folder, str(tmp_path))
    penstock = Path(sys.executable).with_name("penstock")
    subprocess.run(
        [penstock, "certificates", tmp_path, "--days=1"], check=True, capture_output=True, timeout=PATIENCE_S
    )
    files = [files_of(tmp_path / "certificates" / role).certificate for role in ROLES]
    before = [file.read_bytes() for file in files]
    # Two thirds of its life have passed, by the clock of the process alone.
    environment = os.environ | {"PATH": f"{penstock.parent}:{os.environ['PATH']}", "PYTHONPATH": str(tmp_path)}
    (tmp_path / "sitecustomize.py").write_text("import time\nreal = time.time\ntime.time = lambda: real() + 60_000\n")
    renewing = subprocess.Popen([shell, option, looped, "0.1"], env=environment, stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: all(file.read_bytes() != old for file, old in zip(files, before, strict=True)), "new files")
    finally:
        renewing.terminate()
    assert renewing.wait(PATIENCE_S) == -signal.SIGTERM


@for_each("name", [*SERVICES, "operator", "runs"])
def test_services_wait_for_their_settings_and_certificates_and_name_these(name: str) -> None:
    definition = STACK["services"][name]
    completed = {"condition": "service_completed_successfully"}
    assert definition["depends_on"] == {"certificates": completed, "settings": completed}
    named = definition["environment"]["PENSTOCK__SECURITY__CERTIFICATE"]
    # The key and the authority are expected beside it, as `penstock certificates` writes them.
    assert named == str(files_of(Path(CERTIFICATES)).certificate)
    assert "PENSTOCK__SECURITY__INSECURE" not in definition["environment"]


def test_the_images_have_the_folders_that_become_the_volumes_of_certificates() -> None:
    made = {name: (ROOT / f"Dockerfile.{name}").read_text() for name in ("actor", "learner")}
    for name, text in made.items():
        # Docker gives a new volume the owner and the mode of the folder in the image.
        assert re.search(rf"install -d -o 10001 -g 10001 -m 0700 [^&]*{CERTIFICATES}", text), name
    for role in ROLES:
        assert f"/var/lib/penstock/certificates/{role}" in made["actor"]


def test_what_has_a_password_or_a_port_is_apart_from_the_services() -> None:
    services, networks = STACK["services"], STACK["networks"]
    assert networks["services"] == {"internal": True}
    for name in (*SERVICES, "operator", "runs"):
        assert services[name]["networks"] == ["services"]
    assert services["grafana"]["networks"] == ["monitoring"]
    assert set(services["prometheus"]["networks"]) == {"services", "monitoring"}
    assert interpolated("compose.alertmanager.yaml")["services"]["alertmanager"]["networks"] == ["monitoring"]
    isolated = ("certificates", "renewal", "restore", "settings", "check")
    assert all(services[name]["network_mode"] == "none" for name in isolated)


def test_a_line_of_the_env_file_without_effect_replaces_no_container() -> None:
    """Checks read the file. As an env_file, it would replace them, and with older versions what depends on them."""
    assert not [name for name, each in STACK["services"].items() if "env_file" in each]
    for name in ("settings", "check"):
        assert ".:/project:ro" in STACK["services"][name]["volumes"]
        assert "--env-file=/project/.env" in STACK["services"][name]["command"]


@for_each("service", ["settings", "check"])
def test_a_check_has_the_settings_and_the_folders_of_the_services(service: str) -> None:
    definition, services = STACK["services"][service], STACK["services"]
    given = services["actor"]["environment"] | (
        {}
        if service == "settings"
        else {
            "PENSTOCK__REPLAY__FOLDER": services["replay"]["environment"]["PENSTOCK__REPLAY__FOLDER"],
            "PENSTOCK__RUN__DIR": services["learner"]["environment"]["PENSTOCK__RUN__DIR"],
        }
    )
    assert definition["environment"] == given
    assert definition["command"][-1:] == services["actor"]["command"][1:]
    assert (definition["read_only"], definition["user"], definition["cap_drop"]) == (True, "10001:10001", ["ALL"])


def test_the_learner_of_a_gpu_host_refuses_to_train_without_one() -> None:
    assert STACK["services"]["learner"]["environment"]["PENSTOCK__LEARNER__DEVICE"] == "cuda"
    gpu = interpolated("deploy/swarm/gpu.yml")["services"]["learner"]["environment"]
    assert gpu["PENSTOCK__LEARNER__DEVICE"] == "cuda"
    kubernetes = yaml.safe_load((ROOT / "deploy/kubernetes/components/gpu/learner.yaml").read_text())
    (container,) = kubernetes["spec"]["template"]["spec"]["containers"]
    assert container["env"] == [{"name": "PENSTOCK__LEARNER__DEVICE", "value": "cuda"}]
    cpu = interpolated("compose.cpu.yaml")["services"]
    assert cpu["learner"]["environment"]["PENSTOCK__LEARNER__DEVICE"] == "cpu"
    # Its learner has the image of the actors.
    assert cpu["actor"]["build"]["args"]["TORCH"] == "yes"


@for_each("name", PRESETS)
def test_compose_starts_no_more_actors_than_a_preset_plans(name: str) -> None:
    assert int(STACK["services"]["actor"]["scale"]) <= preset(name).train.least_actors


@for_each("name", PRESETS)
def test_no_preset_awaits_actors_that_compose_does_not_start(name: str) -> None:
    expected = STACK["services"]["learner"]["environment"]["PENSTOCK__LEARNER__EXPECTED_ACTORS"]
    config = preset(name, learner={"expected_actors": int(expected)})
    assert config.awaited_actors <= int(STACK["services"]["actor"]["scale"])


def test_the_restore_service_uses_the_folders_of_the_other_services() -> None:
    definition, services = STACK["services"]["restore"], STACK["services"]
    replay, learner = (engines.compose()[each].config for each in ("replay", "learner"))
    assert definition["environment"]["PENSTOCK__RUN__DIR"] == learner.run.dir
    assert definition["environment"]["PENSTOCK__REPLAY__SNAPSHOT_FOLDER"] == replay.replay.snapshots
    assert int(definition["environment"]["PENSTOCK__REPLAY__CAPACITY_BYTES"]) == replay.replay.store_size.amount
    assert set(definition["volumes"]) == {
        volume
        for service in ("replay", "learner")
        for volume in services[service]["volumes"]
        if volume in ("runs:/var/lib/penstock/runs", "replay:/var/lib/penstock/replay")
    }
    # Only when it is asked for, and confined like the others.
    assert (definition["profiles"], definition["restart"]) == (["restore"], "no")
    assert definition["entrypoint"] == ["penstock", "replay", "restore"]
    assert (definition["read_only"], definition["user"], definition["cap_drop"]) == (True, "10001:10001", ["ALL"])


def test_the_commands_of_a_backup_need_no_running_service_and_see_its_folders() -> None:
    page = (ROOT / "docs/OPERATIONS.md").read_text()
    block = page[page.index("# docker compose: copy the files out") :].partition("```")[0].replace("\\\n", "")
    copies = [line.split() for line in block.splitlines() if " > " in line]
    assert len(copies) == 2
    for words in copies:
        run, options = words[:3], words[3 : words.index("restore")]
        assert run == ["docker", "compose", "run"] and {"--rm", "--no-deps", "-T"} <= set(options)
        assert options[options.index("--entrypoint") + 1] == "tar"
        copied = Path(words[words.index("-C") + 1])
        mounted = [Path(volume.split(":")[1]) for volume in STACK["services"]["restore"]["volumes"]]
        assert [folder for folder in mounted if copied.is_relative_to(folder)]


def test_runs_are_removed_where_the_other_services_have_them() -> None:
    definition = STACK["services"]["runs"]
    assert (definition["profiles"], definition["restart"]) == (["runs"], "no")
    program, command, stores = definition["entrypoint"]
    replay, learner = (engines.compose()[each].config for each in ("replay", "learner"))
    assert (program, command) == ("penstock", "runs")
    assert Path(stores.removeprefix("--stores=")) == Path(str(replay.replay.folder)).parent
    # The command looks in the folder `runs` of the image's working directory.
    [working_folder] = set(re.findall(r"^WORKDIR (/var\S+)", (ROOT / "Dockerfile.actor").read_text(), re.MULTILINE))
    assert Path(str(learner.run.dir)).parent == Path(working_folder) / RUNS
    writable = {volume.split(":")[1] for volume in definition["volumes"] if not volume.endswith(":ro")}
    assert writable == {str(Path(working_folder) / RUNS), stores.removeprefix("--stores=")}


def test_the_learner_keeps_compiled_steps_in_a_volume_that_it_writes_and_gets_its_compiler_at_the_build() -> None:
    dockerfile, learner = (ROOT / "Dockerfile.learner").read_text(), STACK["services"]["learner"]
    (cache,) = re.findall(r"TORCHINDUCTOR_CACHE_DIR=(\S+)", dockerfile)
    writable = [volume.split(":")[1] for volume in learner["volumes"] if not volume.endswith(":ro")]
    assert cache in writable
    for variable in ("TRITON_CACHE_DIR", "CUDA_CACHE_PATH"):
        (path,) = re.findall(rf"{variable}=(\S+)", dockerfile)
        assert path.startswith(f"{cache}/")
    # The learner executes what is there, so it is the only one that can write it.
    (volume,) = [each.split(":")[0] for each in learner["volumes"] if each.split(":")[1] == cache]
    others = [service for name, service in STACK["services"].items() if name != "learner"]
    assert not [each for service in others for each in service.get("volumes", []) if each.startswith(f"{volume}:")]
    # No environment's code can write what the learner reads.
    assert "runs:/var/lib/penstock/runs:ro" in STACK["services"]["evaluator"]["volumes"]
    # torch would otherwise compile into /tmp, from which a container's tmpfs lets nothing be executed.
    assert not cache.startswith("/tmp")
    (compiler,) = set(re.findall(r"^ARG (\w+)=", dockerfile, re.MULTILINE)) - {"BASE", "TORCH_INDEX", "COMMIT"}
    assert learner["build"]["args"][compiler] == ""


def test_the_cpu_override_uses_the_image_of_the_actors() -> None:
    learner = interpolated("compose.cpu.yaml")["services"]["learner"]
    assert learner["image"] == STACK["services"]["actor"]["image"]
    assert learner["deploy"] is None and STACK["services"]["learner"]["deploy"]


@for_each("override", [None, "compose.cpu.yaml"])
def test_one_service_builds_each_image(override: str | None) -> None:
    services = {name: dict(definition) for name, definition in STACK["services"].items()}
    for name, definition in (interpolated(override)["services"] if override else {}).items():
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


def test_variables_of_the_files_themselves_are_not_settings() -> None:
    files = [*ROOT.glob("*compose*.y*ml"), *ROOT.glob("deploy/swarm/*.yml")]
    texts = [path.read_text() for path in files]
    read = set(re.findall(r"\$\{(PENSTOCK_[A-Z]\w+)", "".join(texts)))
    assert read == {*OF_COMPOSE, PRESET_VARIABLE}


def test_the_generated_settings_of_compose_are_current() -> None:
    module = runpy.run_path(str(ROOT / "deploy/compose/settings.py"))
    assert module["FILE"].read_text() == module["render"](), "run `make compose-settings`"


@for_each("service", SERVICES)
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
        assert given["PENSTOCK__PPO__EPOCHS"] == "7"  # What only .env has.
        # The service `settings` refuses it.
        assert "PENSTOCK__PPO__EPOCHZ" not in given
        assert given["PENSTOCK__PPO__MINIBATCHES"] is None


def test_the_build_context_contains_only_what_images_need() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    # The commit is read from a few of them. The pattern of COPY also fits a folder that is not a clone.
    kept = {".gi[t]" if each.startswith(".git/") else each for each in kept}
    copied = {
        source
        for file in ("Dockerfile.actor", "Dockerfile.learner")
        for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / file).read_text(), re.MULTILINE)
        for source in sources.split()
    }
    assert kept == copied


def recorded_commit(dockerfile: str, context: Path, argument: str) -> str:
    """Returns the commit that the step of an image's build records, whose context has been copied to `context`."""
    text = (ROOT / dockerfile).read_text()
    (step,) = re.findall(r"^RUN (ref=(?:.*\\\n)*.*)$", text, re.MULTILINE)
    script = step.replace("\\\n", "").replace("/commit", "commit")
    subprocess.run(["sh", "-ec", script], cwd=context, env={**os.environ, "COMMIT": argument}, check=True)
    return (context / "commit").read_text().strip()


@pytest.mark.parametrize("dockerfile", ["Dockerfile.actor", "Dockerfile.learner"])
def test_an_image_records_the_commit_of_the_argument_or_of_the_clone(dockerfile: str, tmp_path: Path) -> None:
    clone, context = tmp_path / "clone", tmp_path / "context"
    context.mkdir()
    assert recorded_commit(dockerfile, context, "") == ""

    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        return subprocess.run(
            ["git", *who, *arguments], cwd=clone, check=True, capture_output=True, text=True
        ).stdout.strip()

    clone.mkdir()
    git("init", "--quiet", "--initial-branch=main")
    git("commit", "--quiet", "--allow-empty", "--message=first")
    head = git("rev-parse", "HEAD")
    kept = [line[6:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!.git/")]

    def recorded(argument: str = "") -> str:
        shutil.rmtree(context)
        for name in kept:
            source, target = clone / ".git" / name, context / "git" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target)
            elif source.exists():
                shutil.copy(source, target)
        return recorded_commit(dockerfile, context, argument)

    assert recorded() == head[:12]
    assert recorded("1a2b3c4") == "1a2b3c4"
    git("pack-refs", "--all")
    assert not (clone / ".git/refs/heads/main").exists()
    assert recorded() == head[:12]
    git("checkout", "--quiet", "--detach")
    assert recorded() == head[:12]
    # Where the program reads it: the prefix of the image's Python. It has no variable, which .env would override.
    text = (ROOT / dockerfile).read_text()
    assert "COPY --from=build /commit /opt/penstock/commit" in text
    assert "PENSTOCK_COMMIT" not in text


def test_services_are_told_that_they_run_under_compose_and_on_one_host() -> None:
    assert "ENV PENSTOCK_INSTALLATION=image" in (ROOT / "Dockerfile.actor").read_text()
    assert "ENV PENSTOCK_INSTALLATION=image" in (ROOT / "Dockerfile.learner").read_text()
    for name in (*SERVICES, "operator", "restore"):
        assert STACK["services"][name]["environment"]["PENSTOCK_INSTALLATION"] == "compose", name
    assert {STACK["services"][name]["environment"]["PENSTOCK__TELEMETRY__NODE"] for name in SERVICES} == {"host"}
    # `doctor` in these containers checks the preset of the services.
    for name in (*SERVICES, "operator"):
        assert STACK["services"][name]["environment"]["PENSTOCK_PRESET"] == "cartpole", name

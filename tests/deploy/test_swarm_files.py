"""deploy/swarm: what only Swarm has, and what its stack shares with Compose besides the services' settings."""

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from penstock.config.settings.security import SecurityConfig
from penstock.runs.folder import RunFolder
from penstock.security.authority import files_of
from penstock.security.certificate import read
from penstock.security.roles import ROLES
from tests.deploy.engines import ROOT, SERVICES, interpolated
from tests.deploy.test_watching import EXPOSED
from tests.rules import for_each
from tests.support.machine.timing import PATIENCE_S

SWARM = ROOT / "deploy" / "swarm"
STACK = interpolated("deploy/swarm/stack.yml")
AUTOSCALE = interpolated("deploy/swarm/autoscale.yml")
COMPOSE = interpolated("docker-compose.yml")
ADMIN = interpolated("compose.admin.yaml")
WATCHING = ("prometheus", "grafana")
ON_SERVICES = {*SERVICES, *WATCHING} - {"actor"}


def of(service: str) -> Any:
    return STACK["services"][service]


def test_the_names_of_the_configurations_are_current() -> None:
    module = runpy.run_path(str(SWARM / "configs.py"))
    for file in module["FILES"]:
        assert file.read_text() == module["render"](file), "run `make swarm-configs`"
    assert all(re.search(r"-[0-9a-f]{8}$", name) for name in (*STACK["configs"], *AUTOSCALE["configs"]))


@for_each("service", WATCHING)
def test_configurations_are_the_files_that_compose_mounts(service: str) -> None:
    mounts = [mount.split(":") for mount in COMPOSE["services"][service]["volumes"] if mount.startswith("./")]
    mounted = {
        f"{target}/{path.relative_to(ROOT / folder)}": path
        for folder, target, _ in mounts
        for path in (ROOT / folder).rglob("*")
        # Prometheus does not read the tests of its rules, and needs no list of targets where it has DNS.
        if path.is_file() and not {"tests", "nodes.yml"} & {*path.parts[len(ROOT.parts) :]}
    }
    given = {
        each["target"]: (SWARM / STACK["configs"][each["source"]]["file"]).resolve() for each in of(service)["configs"]
    }
    assert given == mounted


@for_each("service", WATCHING)
def test_monitoring_is_that_of_compose(service: str) -> None:
    for key in ("image", "command", "cap_drop", "read_only"):
        assert of(service).get(key) == COMPOSE["services"][service].get(key), key
    assert of(service)["healthcheck"]["test"] == COMPOSE["services"][service]["healthcheck"]["test"]
    assert of(service)["deploy"]["resources"]["limits"]["memory"] == COMPOSE["services"][service]["mem_limit"]
    assert of(service)["deploy"]["restart_policy"]["condition"] == "any"


def test_grafana_alone_is_published_and_needs_its_password() -> None:
    assert [name for name in STACK["services"] if "ports" in of(name)] == ["grafana"]
    [port] = of("grafana")["ports"]
    assert (port["mode"], port["target"]) == ("host", 3000)
    environment = of("grafana")["environment"]
    anonymous = {name: value for name, value in environment.items() if name.startswith("GF_AUTH_ANONYMOUS")}
    assert anonymous == {"GF_AUTH_ANONYMOUS_ENABLED": "false"}
    # Compose enables a login in compose.admin.yaml, with the same secret.
    login = ADMIN["services"]["grafana"]
    assert environment["GF_SECURITY_ADMIN_PASSWORD"] == login["environment"]["GF_SECURITY_ADMIN_PASSWORD"]
    assert of("grafana")["secrets"] == login["secrets"] == ["grafana_password"]
    text, admin = (SWARM / "stack.yml").read_text(), (ROOT / "compose.admin.yaml").read_text()
    required = re.compile(r"^secrets:\n +grafana_password: \{file: \"\$\{(\w+):\?", re.MULTILINE)
    assert required.search(text)[1] == required.search(admin)[1]  # type: ignore[index]


def test_grafana_reads_the_file_of_its_password() -> None:
    assert "/run/secrets/grafana_password" in str(of("grafana")["environment"])


@for_each("service", SERVICES)
def test_a_service_has_the_certificate_and_the_key_of_its_role_and_no_other_secret(service: str) -> None:
    files = SecurityConfig(certificate=of(service)["environment"]["PENSTOCK__SECURITY__CERTIFICATE"]).files
    sources = (f"{service}_certificate", f"{service}_key", "authority")
    user, group = of(service)["user"].split(":")
    assert of(service)["secrets"] == [
        {"source": source, "target": target, "uid": user, "gid": group, "mode": 0o400}
        for source, target in zip(sources, files or (), strict=True)
    ]
    # The names of the files are those that the command makes.
    made = files_of(Path(service))
    for source, path in zip(sources[:2], (made.certificate, made.key), strict=True):
        assert STACK["secrets"][source]["file"].endswith(f"/{path}")


def test_every_secret_but_the_password_is_renamed_with_the_certificates() -> None:
    secrets = {name: secret for name, secret in STACK["secrets"].items() if name != "grafana_password"}
    given = {each["source"] for service in SERVICES for each in of(service)["secrets"]}
    assert given == secrets.keys()
    text = (SWARM / "stack.yml").read_text()
    assert len(re.findall(r'name: "penstock-\$\{PENSTOCK_CERTIFICATES_VERSION\b', text)) == len(secrets)
    assert len(re.findall(r'file: "\$\{PENSTOCK_CERTIFICATES\b', text)) == len(secrets)
    assert len({secret["name"] for secret in secrets.values()}) == len(secrets)


def test_grafana_reaches_prometheus_and_no_service() -> None:
    assert of("grafana")["networks"] == ["monitoring"]
    assert of("prometheus")["networks"] == ["run", "monitoring"]
    for service in SERVICES:
        assert of(service)["networks"] == ["run"]
    assert [name for name, network in STACK["networks"].items() if network.get("attachable")] == ["run"]


@pytest.fixture
def engine(tmp_path: Path) -> dict[str, str]:
    """Variables with which a stand-in for `docker run` runs Penstock on this machine, where the folder is mounted."""
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(
        f"""#!/bin/bash
while [[ $1 != certificates ]]; do [[ $1 != --volume ]] || mount=$2; shift; done
exec {shlex.quote(sys.executable)} -m penstock "${{@/${{mount#*:}}/${{mount%%:*}}}}"
"""
    )
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}


def made(engine: dict[str, str], *arguments: str) -> dict[str, str]:
    """Returns the variables that certificates.sh prints, as a shell reads them."""
    script = 'eval "$(sh deploy/swarm/certificates.sh "$@")"; echo "$PENSTOCK_CERTIFICATES"; env | grep ^PENSTOCK_CERT'
    command = ["sh", "-c", script, "sh", *arguments]
    ended = subprocess.run(
        command, cwd=ROOT, env=engine, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert (
        len(
            re.findall(
                r"^(?:actor|evaluator|learner|operator|replay) +(?:new|kept) +until \S+ \S+ UTC$", ended.stderr, re.M
            )
        )
        == 5
    )
    return dict(line.split("=", 1) for line in ended.stdout.splitlines()[1:])


def test_certificates_are_made_once_and_their_version_changes_when_they_are_renewed(
    engine: dict[str, str], tmp_path: Path
) -> None:
    folder = str(tmp_path / "my runs" / "first")
    first = made(engine, folder)
    certificates = RunFolder(Path(folder)).certificates
    assert first["PENSTOCK_CERTIFICATES"] == str(certificates)
    assert re.fullmatch(r"[0-9a-f]{12}", first["PENSTOCK_CERTIFICATES_VERSION"])
    for role in ROLES:
        assert read(files_of(certificates / role), role, now=time.time()).identity.run == "first"
    assert Path(folder).stat().st_mode & 0o077 == 0
    assert made(engine, folder) == first
    assert made(engine, folder, "--renew") != first


def test_a_failure_to_make_certificates_prints_no_variables(engine: dict[str, str], tmp_path: Path) -> None:
    command = ["sh", "deploy/swarm/certificates.sh", str(tmp_path / "run"), "--days=0"]
    ended = subprocess.run(command, cwd=ROOT, env=engine, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 2 and ended.stdout == "" and "choose 1 to" in ended.stderr


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing_in_the_scripts() -> None:
    scripts = [str(path) for path in sorted(SWARM.glob("*.sh"))]
    assert subprocess.run(["shellcheck", *scripts], capture_output=True, text=True, timeout=PATIENCE_S).stdout == ""


def test_the_service_that_scales_runs_its_script_beside_the_engine_of_a_manager() -> None:
    service = AUTOSCALE["services"]["autoscale"]
    [config] = service["configs"]
    assert AUTOSCALE["configs"][config["source"]]["file"] == "autoscale.sh"
    assert service["entrypoint"] == ["sh", config["target"]]
    assert service["deploy"]["placement"]["constraints"] == ["node.role == manager"]
    assert service["volumes"] == ["/var/run/docker.sock:/var/run/docker.sock"]
    # It reaches the learner, and nothing reaches it.
    assert service["networks"] == ["run"] and "ports" not in service
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert set(AUTOSCALE["services"]) == {"autoscale", "learner"}


WANTED = "penstock_learner_wanted_actors"
NO_ANSWER = ""


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        pytest.param([6, 6, 8], [6, 6, 8], id="it grows at once"),
        pytest.param([1] * 5, [4, 4, 4, 1, 1], id="actors above the wanted number go away"),
        pytest.param([1, 1, 1, 6, 1, 1, 1, 1], [4, 4, 4, 6, 6, 6, 6, 1], id="a learner that judges again keeps them"),
        pytest.param([0, NO_ANSWER, 9999999], [4, 4, 4], id="no judgement, no answer and nonsense change nothing"),
        pytest.param([6, NO_ANSWER, "Complete"], [6, 6, 0], id="the end of the run removes them"),
    ],
)
def test_the_actors_follow_what_the_learner_wants(looks: list[int | str], expected: list[int], tmp_path: Path) -> None:
    registry = CollectorRegistry()
    gauge = Gauge(WANTED, "As the learner's.", registry=registry)
    assert WANTED in EXPOSED
    for number, look in enumerate(looks):
        gauge.set(look if isinstance(look, int) else 0)
        (tmp_path / f"metrics-{number}").write_bytes(generate_latest(registry) if isinstance(look, int) else b"")
        (tmp_path / f"state-{number}").write_text(
            "Complete 2 minutes ago" if look == "Complete" else "Running an hour ago"
        )
    (tmp_path / "look").write_text("0")
    (tmp_path / "replicas").write_text("4")
    programs = {
        "docker": """case "$1 $2" in
  "service ps") [ "$5" = drill_learner ] && cat "state-$(cat look)" ;;
  "service inspect") [ "$5" = drill_actor ] && cat replicas ;;
  "service scale") [ "${4%=*}" = drill_actor ] && printf %s "${4#*=}" >replicas ;;
esac""",
        "wget": 'for url; do :; done; [ "$url" = http://learner:9432/metrics ] && cat "metrics-$(cat look)"',
        "sleep": f"""cat replicas >>seen; echo >>seen; echo $(($(cat look) + 1)) >look
[ "$1" = 5 ] && [ "$(cat look)" -lt {len(looks)} ]""",
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "STACK": "drill", "AUTOSCALE_SECONDS": "5"}
    # The stand-in for sleep fails after the last look, which ends the script.
    ended = subprocess.run(
        ["sh", str(SWARM / "autoscale.sh")],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert [int(line) for line in (tmp_path / "seen").read_text().split()] == expected, ended.stderr


def test_services_are_on_one_node_and_actors_on_any() -> None:
    placed = {name for name in STACK["services"] if "placement" in of(name)["deploy"]}
    assert placed == ON_SERVICES
    constraints = {constraint for name in placed for constraint in of(name)["deploy"]["placement"]["constraints"]}
    [constraint] = constraints
    assert constraint.replace("node.labels.", "").replace(" == ", "=") in (SWARM / "stack.yml").read_text()


@for_each("service", STACK["services"])
def test_clients_connect_to_containers_and_not_to_a_virtual_address(service: str) -> None:
    assert of(service)["deploy"]["endpoint_mode"] == "dnsrr"


@for_each("service", SERVICES)
def test_tasks_that_end_well_do_not_restart(service: str) -> None:
    assert of(service)["deploy"]["restart_policy"]["condition"] == "on-failure"


def test_actors_are_replaced_by_working_ones_and_services_are_not_doubled() -> None:
    assert of("actor")["deploy"]["update_config"]["order"] == "start-first"
    assert not any("update_config" in of(name)["deploy"] for name in ON_SERVICES)


def test_the_stack_has_no_key_that_swarm_ignores() -> None:
    # By docker/cli, `cli/compose/types`: unsupported, forbidden, or, like tmpfs and depends_on, dropped without a word.
    ignored = {"build", "depends_on", "devices", "extends", "mem_limit", "restart", "scale", "security_opt", "tmpfs"}
    assert not [(name, key) for name in STACK["services"] for key in ignored & of(name).keys()]


def has_docker() -> bool:
    """Returns whether this machine's Docker can print a stack, which needs no engine."""
    command = ["docker", "stack", "config", "--help"]
    return bool(shutil.which("docker")) and subprocess.run(command, capture_output=True, timeout=60).returncode == 0


def merged(*files: str, **variables: str) -> Any:
    others = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK", "GRAFANA"))}
    command = ["docker", "stack", "config", *(f"--compose-file=deploy/swarm/{file}" for file in files)]
    ended = subprocess.run(
        command, cwd=ROOT, env=others | variables, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ended.returncode == 0 and not ended.stderr, ended.stderr
    return yaml.safe_load(ended.stdout)


@pytest.mark.skipif(not has_docker(), reason="needs `docker stack config`, of Docker's client since 25")
def test_a_run_has_the_settings_of_its_file_and_the_learner_a_gpu_with_its_override(tmp_path: Path) -> None:
    (tmp_path / "run.env").write_text("PENSTOCK_PRESET=pendulum\nPENSTOCK__LEARNER__LISTEN=x:1\n")
    required = {
        "GRAFANA_PASSWORD_FILE": "/dev/null",
        "PENSTOCK_CERTIFICATES": "/a",
        "PENSTOCK_CERTIFICATES_VERSION": "b",
    }
    variables = {"PENSTOCK_SETTINGS": str(tmp_path / "run.env"), "PENSTOCK_REGISTRY": "registry.example.com/team/"}
    stack = merged("stack.yml", "gpu.yml", **required, **variables)
    services = stack["services"]
    assert stack["secrets"]["learner_key"] == {"name": "penstock-b-learner-key", "file": "/a/learner/key.pem"}
    assert services["learner"]["secrets"][1]["mode"] == 0o400
    for service in SERVICES:
        environment = services[service]["environment"]
        assert environment["PENSTOCK_PRESET"] == "pendulum"
        assert environment["PENSTOCK__REPLAY__CAPACITY_BYTES"] == "1073741824"
        assert environment["PENSTOCK__LEARNER__LISTEN"] == "0.0.0.0:7432"
    learner = services["learner"]
    assert learner["image"] == "registry.example.com/team/penstock-learner:latest"
    reserved = learner["deploy"]["resources"]["reservations"]["generic_resources"]
    assert reserved == [{"discrete_resource_spec": {"kind": "gpu", "value": 1}}]
    assert learner["deploy"]["placement"] == services["replay"]["deploy"]["placement"]
    assert "reservations" not in merged("stack.yml", **required)["services"]["learner"]["deploy"]["resources"]


@pytest.mark.skipif(not has_docker(), reason="needs `docker stack config`, of Docker's client since 25")
def test_a_learner_expects_the_actors_that_are_deployed_or_those_that_it_wants() -> None:
    variables = {
        "GRAFANA_PASSWORD_FILE": "/dev/null",
        "PENSTOCK_CERTIFICATES": "/a",
        "PENSTOCK_CERTIFICATES_VERSION": "b",
        "PENSTOCK_ACTORS": "16",
    }
    name = "PENSTOCK__LEARNER__EXPECTED_ACTORS"
    deployed = merged("stack.yml", **variables)["services"]
    assert deployed["learner"]["environment"][name] == str(deployed["actor"]["deploy"]["replicas"]) == "16"
    scaled = merged("stack.yml", "autoscale.yml", **variables)["services"]
    assert scaled["learner"]["environment"] == {**deployed["learner"]["environment"], name: "wanted"}
    assert scaled["autoscale"]["deploy"]["endpoint_mode"] == "dnsrr"

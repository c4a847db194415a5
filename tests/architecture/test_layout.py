"""The house holds together: dependencies point downwards, and the generated contract is current."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.processes import WITH_HELPERS
from helpers.timing import PATIENCE_S

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "services" / "penstock"

# What each part may import of Penstock, and which outside packages it alone, or it never, may use.
ALLOWED: dict[str, set[str]] = {
    "types": set(),
    "errors": set(),
    "files": {"errors"},
    "checkpoint_file": {"errors"},
    "setting_types": {"types"},
    "config": {"errors", "setting_types"},
    "run_folder": {"errors"},
    "summary": {"types", "errors", "config", "files", "run_folder"},
    "presets": {"config", "errors"},
    "v1": {"v1"},
    "replay": {"types", "errors", "files", "replay"},
    "telemetry": {"types", "errors", "config", "telemetry"},
    "algo": {"types", "errors", "algo"},
    "acting": {"types", "errors", "checkpoint_file", "run_folder", "algo", "acting"},
    "learning": {
        "types",
        "errors",
        "config",
        "files",
        "checkpoint_file",
        "run_folder",
        "algo",
        "telemetry",
        "learning",
    },
    "wire": {"types", "errors", "v1", "wire"},
    "sharding": {"types", "wire", "sharding"},
    "rpc": {"types", "errors", "v1", "wire", "sharding", "telemetry", "replay", "learning", "rpc"},
    "apps": {
        "types",
        "errors",
        "config",
        "files",
        "run_folder",
        "summary",
        "algo",
        "acting",
        "learning",
        "replay",
        "rpc",
        "telemetry",
        "apps",
    },
    "cli": {
        "types",
        "errors",
        "config",
        "presets",
        "setting_types",
        "files",
        "run_folder",
        "summary",
        "algo",
        "acting",
        "rpc",
        "apps",
        "cli",
        "__init__",
    },
    "__main__": {"cli"},
    "__init__": {"config", "errors", "presets", "summary", "acting", "cli"},
}
ONLY_IN: dict[str, set[str]] = {
    "grpc": {"rpc"},
    "grpc_health": {"rpc"},
    "torch": {"algo", "acting", "learning", "apps"},
    "gymnasium": {"acting", "cli"},
    "prometheus_client": {"telemetry"},
    "structlog": {"telemetry"},
    "numba": {"replay"},
    "rich": {"cli"},
    "matplotlib": {"cli"},
    "pickle": set(),
}
TRAINING = "from helpers.training import make_batch, make_learner; make_learner().train(make_batch(), 0.0)"


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_modules(path: Path) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if part_of(path) != "v1")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_dependencies_point_downwards_only(path: Path) -> None:
    part = part_of(path)
    for name in imported_modules(path):
        outermost, _, rest = name.partition(".")
        if outermost == "penstock":
            imported = rest.partition(".")[0] if rest else "__init__"
            assert imported in ALLOWED[part], f"{part} must not import {name}"
        elif outermost in ONLY_IN:
            assert part in ONLY_IN[outermost], f"{part} must not import {name}"


def test_every_part_of_the_package_has_a_rule() -> None:
    assert {part_of(path) for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()} - {
        "__pycache__",
        "py.typed",
    } == set(ALLOWED)


@pytest.mark.parametrize(
    ("service", "use", "unused"),
    [
        ("replay", "pass", ("torch", "gymnasium", "matplotlib")),
        # A compiler takes 120 MB and half a second of whoever only hands segments over or reads them.
        ("actor", "pass", ("numba", "matplotlib")),
        ("learner", TRAINING, ("numba", "matplotlib", "torch._dynamo")),
    ],
)
def test_a_service_does_not_load_what_it_does_not_use(service: str, use: str, unused: tuple[str, ...]) -> None:
    script = (
        f"import sys, penstock.apps.{service}, penstock.cli.options;{use};"
        f"print([name for name in {unused!r} if name in sys.modules])"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
        env=os.environ | WITH_HELPERS,
    )
    assert loaded.stdout.strip() == "[]"


def test_the_generated_contract_is_current(tmp_path: Path) -> None:
    protos = sorted(str(path.relative_to(ROOT / "proto")) for path in (ROOT / "proto").rglob("*.proto"))
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        "-Iproto",
        f"--python_out={tmp_path}",
        f"--pyi_out={tmp_path}",
    ]
    subprocess.run([*command, *protos], cwd=ROOT, check=True, timeout=PATIENCE_S)
    generated = {path.name: path.read_text() for path in (tmp_path / "penstock" / "v1").iterdir()}
    committed = {path.name: path.read_text() for path in (PACKAGE / "v1").iterdir() if path.is_file()}
    assert committed == generated, "run `make proto`"

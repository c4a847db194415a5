"""Rules for the layout of the package: dependencies point downwards, and the generated contract is current."""

import ast
import graphlib
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.requirements import Requirement

from penstock.machine.extras import EXTRA_OF
from tests.rules import for_each
from tests.support.machine.timing import PATIENCE_S
from tests.support.services.processes import WITH_HELPERS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "services" / "penstock"

# Parts of Penstock that each part may import, and the only parts that may import some third-party packages.
ALLOWED: dict[str, set[str]] = {
    "types": {"types"},
    "errors": set(),
    "gate_law": set(),
    "machine": {"errors", "machine"},
    "machine.compression": {"types"},
    "runs.folder": {"types", "errors", "machine"},
    "runs.variants_file": {"types", "machine"},
    "config": {"types", "errors", "gate_law", "machine", "runs.folder", "config", "config.settings"},
    "config.settings": {"types", "errors", "gate_law", "machine", "config", "config.settings"},
    "runs": {"types", "errors", "machine", "runs.folder", "config", "runs"},
    "runs.remote_copies": {"errors", "machine", "runs.folder"},
    "presets": {"errors", "machine", "config", "presets"},
    "v1": {"v1"},
    "wire": {"types", "errors", "machine", "machine.compression", "v1", "wire"},
    "replay": {"types", "errors", "gate_law", "machine", "machine.compression", "replay"},
    "sharding": {"types", "gate_law", "sharding"},
    "telemetry": {"errors", "machine", "telemetry"},
    "algo": {"types", "errors", "machine", "algo"},
    "losses": {"algo"},
    "curricula": set(),
    "auxiliary": set(),
    "intrinsic": set(),
    "policies": {"algo"},
    "priorities": {"algo"},
    "advantages": {"algo"},
    "callbacks": {"config", "algo"},
    "small": {"types", "algo", "small"},
    "small.compiled": {"types", "machine", "algo", "small", "small.compiled"},
    "acting.protocols": {"types", "algo"},
    "acting.values": {"types", "errors", "machine", "algo", "acting.values"},
    "acting.environments": {
        "types",
        "errors",
        "machine",
        "algo",
        "acting.protocols",
        "acting.values",
        "acting.environments",
    },
    "acting.policies": {
        "types",
        "errors",
        "machine",
        "runs.folder",
        "runs",
        "algo",
        "small",
        "acting.protocols",
        "acting.values",
        "acting.environments",
        "acting.policies",
    },
    "acting": {
        "types",
        "errors",
        "machine",
        "acting.protocols",
        "acting.values",
        "acting.environments",
        "acting.policies",
        "acting",
    },
    "security": {"errors", "machine", "security"},
    "learning.protocols": {"types"},
    "learning.ranks": {"types", "errors", "algo", "learning.ranks"},
    "learning.step": {
        "types",
        "errors",
        "machine",
        "config",
        "telemetry",
        "algo",
        "losses",
        "priorities",
        "advantages",
        "auxiliary",
        "intrinsic",
        "small.compiled",
        "learning.ranks",
        "learning.step",
    },
    "learning.durable": {
        "types",
        "errors",
        "machine",
        "runs.folder",
        "runs",
        "runs.remote_copies",
        "telemetry",
        "algo",
        "learning.step",
        "learning.durable",
    },
    "learning.members": {
        "types",
        "errors",
        "machine",
        "runs.folder",
        "runs.variants_file",
        "telemetry",
        "learning.durable",
        "learning.members",
    },
    "learning.report": {"types", "telemetry", "learning.step", "learning.members", "learning.report"},
    "learning.run": {
        "types",
        "errors",
        "machine",
        "runs.folder",
        "config",
        "telemetry",
        "algo",
        "callbacks",
        "curricula",
        "learning.protocols",
        "learning.ranks",
        "learning.step",
        "learning.durable",
        "learning.members",
        "learning.report",
        "learning.run",
    },
    "learning": {"machine", "learning"},
    "rpc": {
        "types",
        "errors",
        "gate_law",
        "machine",
        "v1",
        "wire",
        "replay",
        "sharding",
        "telemetry",
        "security",
        "learning.members",
        "learning.report",
        "learning.run",
        "rpc",
    },
    "process": {"types", "errors", "machine", "config", "telemetry", "security", "process"},
    "apps": {
        "types",
        "errors",
        "machine",
        "runs.folder",
        "runs.variants_file",
        "config",
        "runs",
        "runs.remote_copies",
        "replay",
        "telemetry",
        "algo",
        "acting.protocols",
        "acting.values",
        "acting.environments",
        "acting.policies",
        "acting",
        "learning.ranks",
        "learning.step",
        "learning.durable",
        "learning.members",
        "learning.report",
        "learning.run",
        "rpc",
        "process",
        "apps",
        "runs.services_file",
    },
    "runs.services_file": {"types", "errors", "machine", "runs.folder", "config", "runs", "learning.members"},
    "runs.restoring": {
        "types",
        "errors",
        "machine",
        "runs.folder",
        "config",
        "runs",
        "replay",
        "security",
        "learning.durable",
        "learning.members",
    },
    "local": {
        "types",
        "errors",
        "machine",
        "runs.folder",
        "config",
        "runs",
        "runs.remote_copies",
        "rpc",
        "process",
        "local",
    },
    "tracking": {"errors", "machine", "runs.folder", "config", "runs", "tracking"},
    "comparing": {"errors", "machine", "runs.folder", "config", "runs", "local", "comparing"},
    "launch": {"errors", "machine", "runs.folder", "config", "config.settings", "security", "launch"},
    "cli": {
        "types",
        "errors",
        "machine",
        "runs.folder",
        "config",
        "config.settings",
        "runs",
        "runs.remote_copies",
        "presets",
        "replay",
        "acting.values",
        "acting.environments",
        "acting.policies",
        "acting",
        "security",
        "rpc",
        "process",
        "apps",
        "runs.services_file",
        "runs.restoring",
        "local",
        "tracking",
        "comparing",
        "launch",
        "cli",
        "__init__",
    },
    "api": {
        "types",
        "errors",
        "machine",
        "runs.folder",
        "config",
        "runs",
        "presets",
        "acting.policies",
        "process",
        "apps",
        "local",
        "cli",
        "api",
    },
    "__main__": {"cli"},
    "__init__": {
        "types",
        "errors",
        "config",
        "losses",
        "priorities",
        "advantages",
        "runs",
        "presets",
        "acting.environments",
        "acting.policies",
        "apps",
        "local",
        "api",
    },
}
ONLY_IN: dict[str, set[str]] = {
    "cryptography": {"security"},
    "grpc": {"rpc"},
    "grpc_health": set(),
    "stable_retro": {"acting.environments"},
    "torch": {
        "algo",
        "losses",
        "priorities",
        "advantages",
        "auxiliary",
        "intrinsic",
        "small.compiled",
        "acting.policies",
        "learning.ranks",
        "learning.step",
        "learning.durable",
        "learning.run",
        "cli",
    },
    "gymnasium": {"acting.values", "acting.environments", "cli"},
    "prometheus_client": {"telemetry"},
    "structlog": {"telemetry"},
    "lz4": {"machine.compression"},
    "numba": {"replay", "algo", "small.compiled"},
    "rich": {"cli"},
    "matplotlib": {"local"},
    "moviepy": {"cli"},
    "fsspec": {"runs.remote_copies"},
    "huggingface_hub": {"cli"},
    "optuna": {"comparing"},
    "onnxruntime": {"acting.policies"},
    "wandb": {"tracking"},
    "mlflow": {"tracking"},
    "trackio": {"tracking"},
    "pickle": set(),
}
SHARED = "tests.support"
"""Code of the tests that benchmarks and stress programs use too."""
MAY_IMPORT: dict[str, set[str]] = {
    "services": set(),
    "tests": {"tests"},
    "tests/support": {SHARED},
    "benchmarks": {"benchmarks", SHARED},
    "stress": {"stress", SHARED},
}
"""Packages at the top of this repository, and in `tests`, that the code in each folder may import."""
MOST_POSITIONAL = 7
CONTRACT_MODULES = {f"{path.stem}_pb2" for path in (ROOT / "proto").rglob("*.proto")}
TRAINING = (
    "from tests.support.training.training import make_batch, make_learner; make_learner().train(make_batch(), 0.0)"
)


def part_of(path: Path) -> str:
    return part_named(path.relative_to(PACKAGE).with_suffix("").parts)


def part_named(names: Sequence[str]) -> str:
    """Returns the part that has a module or folder: the longest beginning of its name in `ALLOWED`, or the first name.

    A folder may be a part of its own, because others may not import all that may import the part around it.
    """
    inner = ".".join(names[:2])
    return inner if inner in ALLOWED else names[0]


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


@for_each("path", SOURCES)
def test_dependencies_point_downwards_only(path: Path) -> None:
    part = part_of(path)
    for name in imported_modules(path):
        outermost, _, rest = name.partition(".")
        if outermost == "penstock":
            imported = part_named(rest.split(".")) if rest else "__init__"
            assert imported in ALLOWED[part], f"{part} must not import {name}"
        elif outermost in ONLY_IN:
            assert part in ONLY_IN[outermost], f"{part} must not import {name}"


def module_of(path: Path) -> str:
    return ".".join(["penstock", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")


def imports_when_loaded(path: Path, modules: set[str]) -> Iterator[str]:
    """Yields the modules that a module imports outside of functions, for type checkers as well."""
    body = list(ast.parse(path.read_text()).body)
    for node in body:
        if isinstance(node, ast.If | ast.Try | ast.With):
            body += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            named = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from (named & modules) or {node.module}


def test_imports_have_no_cycle() -> None:
    modules = {module_of(path) for path in PACKAGE.rglob("*.py")}
    graph = {module_of(path): set(imports_when_loaded(path, modules)) for path in SOURCES}
    assert "penstock.api.training" in graph["penstock"]
    graphlib.TopologicalSorter(graph).prepare()


@for_each("path", SOURCES)
def test_only_wire_builds_messages_of_the_contract(path: Path) -> None:
    built = [
        node.func.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in CONTRACT_MODULES
    ]
    assert part_of(path) == "wire" or not built, f"{path} builds {built}; build messages in penstock.wire"


def test_every_part_of_the_package_has_a_rule() -> None:
    assert {part_of(path) for path in [*SOURCES, PACKAGE / "v1"]} == set(ALLOWED)


@for_each("folder", MAY_IMPORT)
def test_tests_benchmarks_and_stress_programs_share_code_only_in_the_support_of_tests(folder: str) -> None:
    ours = {"tests", "benchmarks", "stress"}
    for path in (ROOT / folder).rglob("*.py"):
        imported = {name for name in imported_modules(path) if name.partition(".")[0] in ours}
        wrong = {name for name in imported if not any(f"{name}.".startswith(f"{may}.") for may in MAY_IMPORT[folder])}
        assert not wrong, path


@for_each(
    ("service", "use", "unused"),
    [
        ("replay", "pass", ("torch", "gymnasium", "cryptography", *EXTRA_OF)),
        # numba takes 120 MB and half a second, which processes that only transfer segments do not need.
        ("actor", "pass", ("penstock.small.compiled", "numba", "torch", "cryptography", *EXTRA_OF)),
        ("evaluator", "pass", ("penstock.small.compiled", "numba", "torch", "cryptography", *EXTRA_OF)),
        ("learner", TRAINING, ("torch._dynamo", *EXTRA_OF)),
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
    assert without_version(PACKAGE / "v1") == without_version(tmp_path / "penstock" / "v1"), "run `make proto`"


def without_version(folder: Path) -> dict[str, str]:
    """Returns the generated files without what differs between releases of the compiler."""
    version = re.compile(r"Protobuf Python Version: .*|ValidateProtobufRuntimeVersion\([^)]*\)")
    files = {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}
    return {name: version.sub("", text).replace("_Optional[bool]", "bool") for name, text in files.items()}


def test_the_oldest_protobuf_is_that_of_the_generated_contract() -> None:
    """An older one refuses the code at import, and a newer bound excludes environments that work."""
    generated = {
        match
        for path in (PACKAGE / "v1").glob("*_pb2.py")
        for match in re.findall(r"Protobuf Python Version: (\S+)", path.read_text())
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (protobuf,) = [each for each in map(Requirement, project["dependencies"]) if each.name == "protobuf"]
    oldest = {each.version for each in protobuf.specifier if each.operator == ">="}
    newest = {each.version for each in protobuf.specifier if each.operator == "<"}
    assert oldest == generated
    # Generated code runs until the end of the major version after its own.
    assert newest == {str(int(version.split(".")[0]) + 2) for version in generated}


@for_each("path", sorted((PACKAGE / "apps").glob("*.py")))
def test_entry_points_only_connect_parts(path: Path) -> None:
    """Refuses waiting loops and methods: they are behaviour, and belong to a part that is tested without a process."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            assert not any(isinstance(each, ast.FunctionDef) for each in ast.walk(node)), f"{path.name}: {node.name}"
        assert not isinstance(node, ast.While | ast.AsyncFor), f"{path.name}:{node.lineno} has behaviour"


@for_each("path", SOURCES)
def test_no_function_takes_more_than_seven_positional_arguments(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            positional = [each for each in [*node.args.posonlyargs, *node.args.args] if each.arg not in ("self", "cls")]
            assert len(positional) <= MOST_POSITIONAL, f"{path.name}:{node.lineno} {node.name} takes {len(positional)}"


@for_each("path", [path for path in SOURCES if path.name != "vector_wrapper.py"])
def test_wrappers_of_vector_environments_need_no_new_gymnasium(path: Path) -> None:
    """Gymnasium's take parameters from release 1.4 on, and Penstock admits 1.2."""
    assert not re.search(r"\bVector\w*Wrapper\[", path.read_text())


def test_modules_that_other_files_name_exist() -> None:
    files = [*ROOT.glob("Dockerfile.*"), *ROOT.glob("*.y*ml"), ROOT / "Makefile", *(ROOT / "deploy").rglob("*.*")]
    named = {
        (path.name, name)
        for path in files
        if path.suffix not in (".pyc", ".json")
        for name in re.findall(r"(?<![\w./-])penstock(?:\.[a-z_]\w*)+", path.read_text())
        if name.split(".")[1] in {part.split(".")[0] for part in ALLOWED}
    }
    assert named, "no file names a module"
    wrong = {(file, name) for file, name in named if importlib.util.find_spec(name) is None}
    assert not wrong

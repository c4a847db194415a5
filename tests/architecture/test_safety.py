"""Static rules: code does not execute data, start a shell, or write files except through `penstock.machine.files`.

Names of modules in files and messages are data too (`config.foreign_code`). Code that imports by name, and code that
reads settings from files, is listed here, so that a new reader is noticed.
`tests/contract/test_canaries.py` tries each.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.rules import for_each

PACKAGE = Path(__file__).parents[2] / "services" / "penstock"
FILES = [path for path in PACKAGE.rglob("*.py") if not path.name.endswith("_pb2.py")]
RUN_DATA = {"eval", "exec", "compile", "torch.load", "yaml.load", "os.system", "os.popen", "numpy.load", "np.load"}
MODULES = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "yaml", "joblib"}
WRITES = {"write_text", "write_bytes", "tofile"}
MAY_WRITE = {
    "machine/files.py",
    "local/child_log.py",  # writes logs of services
    "cli/main.py",  # opens /dev/null
    "cli/commands/train.py",  # opens /dev/null
    "process/output.py",  # opens a log
    "machine/background.py",  # sets the priority of a session in /proc
    "replay/store/staging.py",  # maps a file
}
"""Modules that write without `penstock.machine.files`, and why."""

IMPORTS = {"importlib.import_module", "__import__", "importlib.util.spec_from_file_location", "runpy.run_path"}
MAY_IMPORT = {
    "machine/module_imports.py",  # modules of users
    "__init__.py",  # names of the public interface
    "cli/main.py",  # commands
    "cli/screen/notebook_display.py",  # IPython
    "local/template_process.py",  # modules of services
    "acting/environments/workers/foreign_worker.py",  # in another Python, which a process's own settings name
    "small/compiled/flat_network.py",  # NumPy's library
}
"""Modules that import by name, and what."""

OF_USERS = {"import_module", "import_modules", "import_named", "import_for"}
IMPORT_OF_USERS = {
    "machine/module_imports.py",
    "algo/own_modules.py",  # `with_own_module` was called before
    "learning/step/own/code.py",  # imports the functions of a process's own settings
    "learning/step/own/intrinsic.py",  # makes the module of intrinsic rewards that these name
    "learning/run/own_callbacks.py",  # makes the callbacks of a process's own settings
    "acting/environments/interfaces/parallel_agents.py",  # makes the environments of a process's own settings
    "acting/environments/registry.py",  # makes the environments of a process's own settings
    "acting/environments/wrappers/named.py",  # wraps them
    "apps/episodes.py",  # after `refuse_foreign_code`
    "tracking/trackers.py",  # makes the tracker of the command's own option, `--to`
}
"""Modules that import what a name of a user names."""

STARTS = {f"subprocess.{name}" for name in ("Popen", "run", "call", "check_call", "check_output")}
SETTINGS = {"load_toml", "Config.load", "read_recorded", "read_settings"}
READ_SETTINGS = {
    "config/configuration.py",  # `Config.load` marks what the file names
    "config/recorded.py",  # returns values
    "cli/options.py",  # marks the settings of a run to resume, and those of `doctor --config`
    "apps/episodes.py",  # refuses what the run names
    "apps/environments.py",  # refuses what the run names
    "api/run.py",  # returns what `Config.load` marks
    "runs/services_file.py",  # reads limits
    "runs/summary.py",  # sees whether the run names code
    "apps/earlier_session.py",  # compares
    "cli/named.py",  # shows, as the next three
    "cli/commands/runs.py",
    "cli/commands/status.py",
    "cli/commands/track.py",
    "local/learning_curves.py",
    "cli/commands/tune.py",  # a search space, which the user names as the file of --config
}
"""Modules that read the settings of a run from a file."""


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def imported(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def writes(name: str, call: ast.Call) -> bool:
    if name == "os.open":
        return "O_RDONLY" not in ast.unparse(call)
    if name.rpartition(".")[2] in WRITES:
        return True
    if name == "open" or (name.endswith(".open") and name.partition(".")[0] != "os"):
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        modes = [argument.value for argument in given if isinstance(argument, ast.Constant)]
        return any(isinstance(mode, str) and len(mode) <= 3 and set(mode) & set("wax+") for mode in modes)
    return False


@for_each("path", FILES)
def test_no_data_is_executed_and_files_are_written_in_one_way(path: Path) -> None:
    tree, name = ast.parse(path.read_text()), str(path.relative_to(PACKAGE))
    assert not imported(tree) & MODULES
    for function, call in calls(tree):
        assert function not in RUN_DATA, ast.unparse(call)
        shell = [keyword for keyword in call.keywords if keyword.arg == "shell"]
        assert not shell, ast.unparse(call)
        if name not in MAY_WRITE:
            assert not writes(function, call), ast.unparse(call)


@for_each("path", FILES)
def test_processes_are_started_with_a_copy_of_the_variables(path: Path) -> None:
    """Without it, a variable that another thread sets meanwhile may move the list, and the start fails (`EFAULT`)."""
    for function, call in calls(ast.parse(path.read_text())):
        if function in STARTS:
            assert any(keyword.arg == "env" for keyword in call.keywords), ast.unparse(call)


def test_every_exception_to_the_rule_for_writing_is_needed() -> None:
    for name in MAY_WRITE - {"machine/files.py"}:
        found = calls(ast.parse((PACKAGE / name).read_text()))
        assert any(writes(function, call) for function, call in found), name


@for_each(
    "code",
    ["Path(x).open('w')", "open(x, mode='ab')", "os.open(x, os.O_WRONLY)", "place.write_text('')", "path.open('r+b')"],
)
def test_writes_are_detected(code: str) -> None:
    assert any(writes(function, call) for function, call in calls(ast.parse(code)))


@for_each(("functions", "allowed"), [(IMPORTS, MAY_IMPORT), (OF_USERS, IMPORT_OF_USERS), (SETTINGS, READ_SETTINGS)])
def test_known_modules_alone_import_by_name_or_read_settings(functions: set[str], allowed: set[str]) -> None:
    found = {
        str(path.relative_to(PACKAGE))
        for path in FILES
        for function, _ in calls(ast.parse(path.read_text()))
        if function in functions
    }
    assert found == allowed

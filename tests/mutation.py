"""`make mutation`: changes the package in one place at a time, and reports which changes no test notices.

Each mutant is a copy of the package with one comparison, operator, constant or condition changed, chosen by a seed. The
test file of its module (`tests/architecture/test_where_tested.py`) runs against it, then those of `ALSO`, and then each
that imports the module. If all pass, the first ones run again with their nightly tests. A mutant that passes these too
survives: a test is missing, or the change has no effect. The report is build/mutation.md, and the exit code is 1 if a
mutant survived.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.architecture.test_where_tested import ELSEWHERE, PACKAGE, ROOT, TESTS, own_files

AREAS = ("replay", "algo", "learning", "rpc", "acting", "security")
ALSO = {
    "acting": ["exactness/test_exactness.py", "unit/acting/test_recorder.py", "contract/test_environment_check.py"],
    "algo": ["exactness/test_exactness.py", "unit/learning/step/test_direct_execution.py"],
    "learning": ["exactness/test_exactness.py", "unit/learning/test_training_run.py"],
    "replay": ["unit/replay/test_buffer.py", "contract/test_replay_service.py"],
    "rpc": [
        "contract/test_replay_service.py",
        "contract/test_errors_and_health.py",
        "contract/test_hostile_requests.py",
    ],
    "security": ["contract/test_certified_services.py", "contract/test_permissions.py"],
}
"""Further test files of each area, relative to tests."""
OPTIONS = ("-q", "-x", "-n", "0", "-p", "no:cacheprovider")
GATE, NIGHTLY = ("-m", "not long and not nightly"), ("-m", "not long")
LIMIT_S = 900.0
"""Seconds after which a mutant counts as killed: it hangs."""
OUTPUT = ROOT / "build" / "mutation.md"

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}


class Mutant(NamedTuple):
    """One change: the module, relative to the package, its line, the code before and after, and the changed text."""

    module: str
    line: int
    before: str
    after: str
    text: str


def mutants_of(module: str) -> Iterator[Mutant]:
    """Yields all mutants of a module."""
    text = (PACKAGE / module).read_text()
    for node in ast.walk(_without_annotations(ast.parse(text))):
        changed = _changed(node)
        if changed is None or not isinstance(node, ast.expr) or node.lineno != node.end_lineno:
            continue
        before, after = ast.get_source_segment(text, node) or "", ast.unparse(changed)
        lines = text.splitlines(keepends=True)
        line = lines[node.lineno - 1].encode()
        lines[node.lineno - 1] = (
            line[: node.col_offset] + f"({after})".encode() + line[node.end_col_offset :]
        ).decode()
        yield Mutant(module, node.lineno, before, after, "".join(lines))


def _without_annotations(tree: ast.Module) -> ast.Module:
    """Removes what has no effect at run time: annotations, decorators' arguments and texts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns, node.decorator_list = None, []
            for each in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
                each.annotation = None
        elif isinstance(node, ast.ClassDef):
            node.decorator_list = []
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Name("object")
        elif isinstance(node, ast.JoinedStr):
            node.values = []
    return tree


def _changed(node: ast.AST) -> ast.expr | None:
    match node:
        case ast.Compare(left, [operator], comparators):
            return ast.Compare(left, [_COMPARED[type(operator)]()], comparators)
        case ast.BinOp(left, operator, right) if type(operator) in _COMPUTED:
            return ast.BinOp(left, _COMPUTED[type(operator)](), right)
        case ast.BoolOp(operator, values):
            return ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
        case ast.UnaryOp(ast.Not(), operand):
            return operand
        case ast.IfExp(test, body, otherwise):
            return ast.IfExp(test, otherwise, body)
        case ast.Constant(bool() as value):
            return ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            return ast.Constant(value + 1)
    return None


def chosen(areas: list[str], count: int, seed: int) -> list[Mutant]:
    """Returns `count` mutants of each area. A module is chosen as often as its share of the area's mutants."""
    generator, found = random.Random(seed), []
    for area in areas:
        modules = sorted(str(path.relative_to(PACKAGE)) for path in (PACKAGE / area).rglob("*.py"))
        every = [mutant for module in modules for mutant in mutants_of(module)]
        found += generator.sample(every, min(count, len(every)))
    return found


def test_files(mutant: Mutant) -> list[Path]:
    """Returns the test files that run against a mutant, first that of its module."""
    own = own_files(PACKAGE / mutant.module) or [TESTS / ELSEWHERE[mutant.module]]
    return list(dict.fromkeys([*own, *(TESTS / each for each in ALSO[mutant.module.partition("/")[0]])]))


def failing(files: Iterable[Path], mutant: Mutant | None = None, options: Sequence[str] = GATE) -> Path | None:
    """Runs test files against a copy of the package, with the mutant; returns the first that fails, if one does."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        services = Path(folder) / "services"
        # Numba's caches belong to the files' times, which the copy keeps.
        shutil.copytree(ROOT / "services", services)
        if mutant is not None:
            (services / "penstock" / mutant.module).write_text(mutant.text)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(services), str(ROOT)])}
        for file in files:
            command = [sys.executable, "-m", "pytest", *OPTIONS, *options, str(file)]
            try:
                end = subprocess.run(
                    command, cwd=ROOT, env=environment, capture_output=True, timeout=LIMIT_S, check=False
                )
            except subprocess.TimeoutExpired:
                return file
            if end.returncode not in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
                return file
    return None


def importing(module: str) -> list[Path]:
    """Returns the test files that import a module of the package."""
    name = f"penstock.{module.removesuffix('.py').replace('/', '.')} import"
    return [path for path in sorted(TESTS.rglob("test_*.py")) if name in path.read_text()]


def killer_of(mutant: Mutant) -> str:
    """Returns the test file that notices a mutant, and whether its nightly tests do; empty if none does."""
    own = test_files(mutant)
    if file := failing(own, mutant):
        return str(file.relative_to(TESTS))
    others = [path for path in importing(mutant.module) if path not in own]
    for files, options, when in ((others, GATE, ""), (own, NIGHTLY, ", nightly")):
        file = failing(files, mutant, options)
        if file is not None and not failing([file], options=options):
            return f"{file.relative_to(TESTS)}{when}"
    return ""


def main() -> int:
    """Runs the mutants, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="make mutation", description=__doc__)
    parser.add_argument("areas", nargs="*", default=list(AREAS), help="folders of the package")
    parser.add_argument("--count", type=int, default=10, help="mutants of each area")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    mutants = chosen(given.areas, given.count, given.seed)
    rows = ["| module | line | before | after | killed by |", "|---|---|---|---|---|"]
    started, survivors = time.monotonic(), 0
    if broken := failing(dict.fromkeys(file for mutant in mutants for file in test_files(mutant))):
        print(f"{broken} fails without a mutant", file=sys.stderr)
        return 2
    print(f"the tests pass without a mutant, {time.monotonic() - started:.0f} s", flush=True)
    with ThreadPoolExecutor(given.processes) as pool:
        for number, (mutant, killer) in enumerate(zip(mutants, pool.map(killer_of, mutants), strict=True), 1):
            survivors += not killer
            cells = (
                mutant.module,
                str(mutant.line),
                f"`{mutant.before}`",
                f"`{mutant.after}`",
                killer or "**survives**",
            )
            rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
            print(f"{number}/{len(mutants)}, {time.monotonic() - started:.0f} s: {' '.join(cells)}", flush=True)
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(f"{len(mutants)} mutants, {survivors} survive.\n\n" + "\n".join(rows) + "\n")
    print(f"{survivors} of {len(mutants)} survive: {OUTPUT.relative_to(ROOT)}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())

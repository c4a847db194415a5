"""`make test-oldest` and `make test-newest`: the tests with the oldest and the newest releases that Penstock admits.

The environment build/oldest has the lowest version of each direct dependency of the core and of the extras that tests
need, and build/newest has what pip finds, without a lock. Tools and indirect dependencies are as new as these allow.
PyPI's torch for Linux includes CUDA, so the oldest takes 6 GB; `--torch VERSION` takes another one, and `--python`
another Python. CartPole is trained first, and `--tests` chooses tests. Exit code 1 if one fails. Versions are in
build/oldest.txt or build/newest.txt.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
EXTRAS = ("test", "plot", "video", "atari", "gpu", "remote", "tune")
TESTS = ("tests/unit", "tests/contract", "tests/integration/test_train.py", "tests/integration/test_certified_run.py")


def dependencies() -> list[Requirement]:
    """Returns the direct dependencies of the core and of `EXTRAS`, without the project's own name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = (each for extra in EXTRAS if extra != "test" for each in project["optional-dependencies"][extra])
    return [Requirement(each) for each in (*project["dependencies"], *optional)]


def lowest(requirement: Requirement) -> str:
    """Returns the lowest version of a requirement. Raises `ValueError` if it has none, or several."""
    (version,) = (each.version for each in requirement.specifier if each.operator == ">=")
    return version


def constraints(which: str, torch: str | None) -> list[str]:
    """Returns the lines of a constraints file of pip."""
    found: dict[str, str] = {}
    if which == "oldest":
        found |= {canonicalize_name(each.name): lowest(each) for each in dependencies()}
    if torch is not None:
        found["torch"] = torch
    return [f"{name}=={version}" for name, version in sorted(found.items())]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=("oldest", "newest"))
    parser.add_argument("--torch", metavar="VERSION", help="another version of torch")
    parser.add_argument("--python", default=sys.executable, help="another interpreter, for example python3.14")
    parser.add_argument("--tests", nargs="+", default=TESTS, metavar="PATH", help=f"default: {' '.join(TESTS)}")
    given = parser.parse_args()
    environment = ROOT / "build" / given.which
    python = environment / "bin" / "python"
    subprocess.run([given.python, "-m", "venv", "--clear", environment], check=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(constraints(given.which, given.torch)))
        file.flush()
        # A copy of the sources would leave build/lib in the tree, which the editable installation does not.
        own = f"{ROOT}[{','.join(EXTRAS)}]"
        subprocess.run([python, "-m", "pip", "install", "-q", "-c", file.name, "--editable", own], check=True)
    versions = subprocess.check_output([python, "-m", "pip", "freeze", "--exclude-editable"], text=True)
    (ROOT / "build" / f"{given.which}.txt").write_text(versions)
    print(versions)
    # Compiled code of other versions of Numba is not read.
    variables = {**os.environ, "NUMBA_CACHE_DIR": str(environment / "numba")}
    with tempfile.TemporaryDirectory() as folder:
        run = [python, "-m", "penstock", "train", "--seed", "1"]
        subprocess.run(run, cwd=folder, env=variables, check=True)
    pytest = [python, "-m", "pytest", "-n", "auto", "--dist", "loadfile", "--no-loadscope-reorder", "-q"]
    return subprocess.run([*pytest, *given.tests], cwd=ROOT, env=variables, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

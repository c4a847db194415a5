"""Builds Penstock's sdist and wheel from a copy of its sources, and checks what they contain."""

import hashlib
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

from tests.package.failure import Failure

ROOT = Path(__file__).parents[2]
_IN_SDIST = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "PKG-INFO", "MANIFEST.in", "setup.cfg")


@dataclass(frozen=True, slots=True)
class Distributions:
    """The files that pip installs: the wheel was built from the sources, `again` from the sdist."""

    sdist: Path
    wheel: Path
    again: Path


def copy_sources(folder: Path) -> Path:
    """Copies what git does not ignore into a new repository in the folder, so that old builds have no influence."""
    names = _git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    _git(folder, "init", "--quiet")
    _git(folder, "add", "--all")
    return folder


def build(source: Path, output: Path) -> Distributions:
    """Builds the sdist, a wheel from it, and a wheel from the sources.

    Raises `Failure` if the source folder then contains a file that git does not ignore.
    """
    tools = [sys.executable, "-m"]
    subprocess.run([*tools, "build", "--no-isolation", f"--outdir={output}", source], check=True, capture_output=True)
    wheels = output / "from-sources"
    options = ("--no-deps", "--no-build-isolation", "--disable-pip-version-check", f"--wheel-dir={wheels}")
    subprocess.run([*tools, "pip", "wheel", *options, "."], cwd=source, check=True, capture_output=True)
    if left := _git(source, "ls-files", "--others", "--exclude-standard").split():
        raise Failure(f"the builds left {', '.join(left[:5])} in the source folder")
    return Distributions(_only(output, "*.tar.gz"), _only(wheels, "*.whl"), _only(output, "*.whl"))


def check_wheel(built: Distributions) -> None:
    """Raises `Failure` unless the wheel has all files of the package and no others, and equals the sdist's wheel."""
    contents = _contents(built.wheel)
    metadata = next(name for name in contents if name.endswith(".dist-info/METADATA"))
    folder = metadata.partition("/")[0]
    sources = set(_git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "services").split())
    expected = {name.removeprefix("services/") for name in sources if (ROOT / name).is_file()}
    found = {name for name in contents if not name.startswith(folder)}
    if found != expected:
        raise Failure(f"the wheel lacks {_shown(expected - found)} and has {_shown(found - expected)} in addition")
    if not {"penstock/py.typed", "penstock/presets/cartpole.toml", "penstock/v1/run_pb2.py"} <= found:
        raise Failure("the wheel lacks py.typed, the presets or the contract")
    if contents != _contents(built.again):
        raise Failure("the wheel from the sdist differs from the wheel from the sources")
    _check_metadata(built.wheel, metadata)


def check_sdist(built: Distributions) -> None:
    """Raises `Failure` unless the sdist has the package, the contract, the readme and the licence, and nothing else."""
    with tarfile.open(built.sdist) as file:
        names = {member.name.partition("/")[2] for member in file.getmembers() if member.isfile()}
    protos = {path.relative_to(ROOT).as_posix() for path in (ROOT / "proto").rglob("*.proto")}
    if lacking := {*protos, "pyproject.toml", "README.md", "LICENSE", "services/penstock/py.typed"} - names:
        raise Failure(f"the sdist lacks {_shown(lacking)}")
    others = {name for name in names if name not in _IN_SDIST and not name.startswith(("services/", "proto/"))}
    if others:
        raise Failure(f"the sdist has {_shown(others)} in addition")


def _check_metadata(wheel: Path, name: str) -> None:
    with zipfile.ZipFile(wheel) as file:
        fields = Parser().parsestr(file.read(name).decode())
    for field in ("Name", "Version", "Summary", "Requires-Python", "License-Expression", "License-File"):
        if not fields.get(field):
            raise Failure(f"the wheel's metadata lack {field}")
    if fields.get("Description-Content-Type") != "text/markdown" or "# Penstock" not in str(fields.get_payload()):
        raise Failure("the wheel's metadata lack the readme")


def _contents(wheel: Path) -> dict[str, str]:
    """Returns the files of a wheel with their checksums, without the record of these."""
    with zipfile.ZipFile(wheel) as file:
        names = (name for name in file.namelist() if not name.endswith(("/", "/RECORD")))
        return {name: hashlib.sha256(file.read(name)).hexdigest() for name in names}


def _only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise Failure(f"{folder} has {len(found)} files {pattern}, expected one")
    return found[0]


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.check_output(["git", *arguments], cwd=folder, text=True)


def _shown(names: set[str]) -> str:
    return ", ".join(sorted(names)[:5]) or "nothing"

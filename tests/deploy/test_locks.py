"""The lock files: each package has hashes, and everything that installs them has pip check those."""

import re
import tomllib
from importlib.metadata import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.rules import for_each

ROOT = Path(__file__).parents[2]
HASHED = ("requirements.lock", "requirements-actor.lock", "requirements-learner.lock")
IMAGES = {"Dockerfile.actor": "requirements-actor.lock", "Dockerfile.learner": "requirements-learner.lock"}


def pins(name: str) -> dict[str, str]:
    """Returns the hashes of each pinned version, as one text."""
    text = (ROOT / name).read_text().replace("\\\n", "")
    return {line.split()[0]: " ".join(line.split()[1:]) for line in text.splitlines()}


@for_each("name", HASHED)
def test_each_package_has_one_version_and_hashes(name: str) -> None:
    for pin, hashes in pins(name).items():
        assert re.fullmatch(r"[a-z0-9-]+==\S+", pin), pin
        assert re.fullmatch(r"--hash=sha256:[0-9a-f]{64}( --hash=sha256:[0-9a-f]{64})*", hashes), pin


@for_each("name", ("requirements-torch.lock", "requirements.lock"))
def test_each_version_can_be_installed_with_the_oldest_python(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = f"{project['requires-python'].removeprefix('>=')}.0"
    needed = {pin: str(metadata(Requirement(pin).name).json.get("requires_python", "")) for pin in pins(name)}
    assert {pin for pin, python in needed.items() if oldest not in SpecifierSet(python)} == set()


@for_each("name", IMAGES.values())
def test_an_image_has_the_versions_and_hashes_of_the_development_environment(name: str) -> None:
    assert pins(name).items() < pins("requirements.lock").items()


def test_torch_alone_has_no_hashes_and_is_in_no_other_lock() -> None:
    (pin,) = pins("requirements-torch.lock")
    assert Requirement(pin).name == "torch"
    assert not any(each.startswith("torch==") for name in HASHED for each in pins(name))


@for_each(("dockerfile", "lock"), IMAGES.items())
def test_an_image_installs_its_lock_with_hashes_and_nothing_else_without(dockerfile: str, lock: str) -> None:
    text = (ROOT / dockerfile).read_text().replace("\\\n", "")
    installs = [part.strip() for part in re.findall(r"/bin/pip install ([^&;\n]*)", text)]
    without = [each for each in installs if not each.startswith("--require-hashes -r ")]
    assert f"--require-hashes -r {lock}" in installs
    # torch.txt has an index and constraints, and names the lock of torch alone.
    allowed = ("-r requirements-torch.lock", "-r torch.txt", "-c versions.txt ${PACKAGES}", "--no-deps /wheels/*.whl")
    assert all(each.replace("penstock-*", "*").endswith(allowed) for each in without), without
    requirements = re.findall(r"printf '%s\\n' (.*) > torch.txt", text)
    named = "\"--extra-index-url $TORCH_INDEX\" '-c without-cuda.txt' '-r requirements-torch.lock'"
    assert requirements == [named] * ("torch.txt" in text)


def test_make_install_checks_the_hashes() -> None:
    lines = (ROOT / "Makefile").read_text().splitlines()
    (line,) = [line for line in lines if "pip install" in line and line.endswith(" requirements.lock")]
    assert "--require-hashes" in line

"""Optional packages: the extras of pyproject.toml install them, and the core does without them."""

import importlib.metadata
import re
import tomllib
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from penstock.acting.environments.packages import WELL_KNOWN
from penstock.errors import ConfigurationError
from penstock.machine.extras import EXTRA_OF, installation, lacking, missing, missing_module, require

PROJECT: dict[str, Any] = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
DISTRIBUTIONS = {
    "Box2D": {"box2d", "box2d-py"},
    "ale_py": {"ale-py"},
    "envpool": {"envpool"},
    "fsspec": {"fsspec"},
    "huggingface_hub": {"huggingface-hub"},
    "matplotlib": {"matplotlib"},
    "minigrid": {"minigrid"},
    "mlflow": {"mlflow-skinny"},
    "moviepy": {"moviepy"},
    "mujoco": {"mujoco"},
    "onnx": {"onnx"},
    "onnxruntime": {"onnxruntime"},
    "onnxscript": {"onnxscript"},
    "optuna": {"optuna"},
    "pettingzoo": {"pettingzoo"},
    "pygame": {"pygame", "pygame-ce"},
    "pyspiel": {"open-spiel"},
    "stable_retro": {"stable-retro"},
    "trackio": {"trackio"},
    "wandb": {"wandb"},
}
"""Names under which packages are installed, which depend on Gymnasium's release, by the modules that they contain."""


def required_by(requirements: Iterable[str]) -> set[str]:
    """Returns the names of packages that pip would install for requirements, as far as they are installed here."""
    found, left, seen = set(), list(requirements), set()
    while left:
        requirement = Requirement(left.pop())
        key = (requirement.name.lower().replace("_", "-"), frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        found.add(key[0])
        if key[0] == "penstock":
            left += [each for extra in requirement.extras for each in EXTRAS[extra]]
            continue
        try:
            further = importlib.metadata.requires(requirement.name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for line in further:
            marker = Requirement(line).marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in (requirement.extras or {""})):
                left.append(line)
    return found


def test_the_core_requires_no_optional_package() -> None:
    core = required_by(PROJECT["dependencies"])
    assert {"torch", "gymnasium", "sympy", "llvmlite"} <= core
    # torch requires fsspec. The image of actors, which may have no torch, lacks it.
    assert core & {*chain.from_iterable(DISTRIBUTIONS.values()), "pillow", "imageio-ffmpeg"} == {"fsspec"}


@pytest.mark.parametrize("module", EXTRA_OF)
def test_an_extra_installs_the_package_that_it_is_named_for(module: str) -> None:
    assert DISTRIBUTIONS[module] & required_by(EXTRAS[EXTRA_OF[module]])


def test_all_has_every_extra_for_users_but_the_largest() -> None:
    everything = required_by(EXTRAS["all"])
    for extra in set(EXTRAS) - {"all", "dev", "envpool", "test"}:
        assert required_by(EXTRAS[extra]) <= everything, extra


def test_the_packages_of_extras_that_register_environments_are_well_known() -> None:
    installations = {each.module: each.installation for each in WELL_KNOWN}
    assert (
        {module for module, how in installations.items() if not how}
        == {"ale_py", "minigrid", "stable_retro"}
        <= set(EXTRA_OF)
    )


def test_a_missing_module_names_its_extra() -> None:
    assert str(lacking("penstock plot", "matplotlib")) == (
        "penstock plot needs matplotlib; install it with: pip install 'penstock[plot]'"
    )
    assert installation("highway_env", "highway-env") == "install it with: pip install highway-env"
    with pytest.raises(ConfigurationError, match=re.escape("a test needs no_such_module; install it with: pip")):
        require("no_such_module", "a test")
    require("json", "a test")
    assert missing("no_such_module") and not missing("json")


def test_the_module_whose_absence_caused_an_error_is_found_behind_other_errors() -> None:
    try:
        try:
            import no_such_module.part  # type: ignore[import-not-found] # noqa: F401
        except ImportError as error:
            raise RuntimeError("can't draw") from error
    except RuntimeError as error:
        assert missing_module(error) == "no_such_module"
    assert missing_module(RuntimeError("another fault")) is None

"""Suites of environments: packages on PyPI that register environments with Gymnasium.

The packages of different suites conflict: dm_control needs a later MuJoCo than Gymnasium's environments. Each
suite therefore has a virtual environment of its own, build/environments/<suite>. It sees the packages of the
interpreter that creates it, Penstock's among them, and adds those of the suite.
"""

import json
import os
import re
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "environments"


@dataclass(frozen=True, slots=True)
class Suite:
    """Packages that register environments.

    Attributes:
        name: Name of the suite, and of its virtual environment.
        title: Name of the packages in the documentation.
        requirements: Arguments of `pip install`.
        modules: Modules that register the environments when they are imported; none for Gymnasium's own.
        kinds: Names of the kinds of environments, with the pattern of each, which is searched in `<id> <entry point>`.
            The first pattern that is found decides.
        variables: Environment variables that the packages need on a machine without a display.
    """

    name: str
    title: str
    requirements: tuple[str, ...]
    modules: tuple[str, ...]
    kinds: tuple[tuple[str, str], ...]
    variables: tuple[tuple[str, str], ...] = ()

    def kind_of(self, env_id: str, entry: str) -> str:
        """Returns the kind of an environment."""
        return next(kind for kind, pattern in self.kinds if re.search(pattern, f"{env_id} {entry}"))


SUITES = (
    Suite(
        name="gymnasium",
        title="Gymnasium",
        requirements=("gymnasium[box2d,jax,mujoco]", "box2d==2.3.10", "jax==0.10.2", "mujoco==3.15.0"),
        modules=(),
        kinds=(
            ("toy text", r"gymnasium\.envs\.toy_text\."),
            ("classic control", r"gymnasium\.envs\.classic_control\."),
            ("Box2D", r"gymnasium\.envs\.box2d\."),
            ("MuJoCo v4, v5", r"gymnasium\.envs\.mujoco\."),
            ("JAX: `phys2d`, `tabular`", r"gymnasium\.envs\.(phys2d|tabular)\."),
            ("placeholders of environments that moved", ""),
        ),
    ),
    Suite(
        name="highway_env",
        title="highway-env",
        requirements=("highway-env==1.12.1",),
        modules=("highway_env",),
        kinds=(("driving", ""),),
    ),
    Suite(
        name="dm_control",
        title="dm_control through shimmy",
        requirements=("shimmy[dm-control]==2.0.1", "dm-control==1.0.50", "mujoco==3.17.0"),
        modules=("shimmy",),
        kinds=(
            ("any environment, which is an argument", r"compatibility-env"),
            ("locomotion", "^dm_control/(Cmu|Rodent)"),
            ("manipulation from images", "_vision-"),
            ("manipulation", "_features-"),
            ("control suite", ""),
        ),
        variables=(("MUJOCO_GL", "egl"),),
    ),
    Suite(
        name="minigrid",
        title="MiniGrid",
        requirements=("minigrid==3.2.0",),
        modules=("minigrid",),
        kinds=(("BabyAI", "^BabyAI-"), ("wave function collapse", "^MiniGrid-WFC-"), ("MiniGrid", "^MiniGrid-")),
    ),
    Suite(
        name="ale",
        title="ALE",
        requirements=("ale-py==0.12.1",),
        modules=("ale_py",),
        kinds=(("`ALE/`", "^ALE/"), ("older forms of the same games", "")),
    ),
)


@dataclass(frozen=True, slots=True)
class Listed:
    """A registered environment.

    Attributes:
        id: Its id.
        suite: Name of its suite.
        kind: Its kind, one of the suite's.
        observation: Its observation space in a few words; empty if Gymnasium can't create it.
        action: Its action space likewise.
        error: The error of `gymnasium.make` or of the first reset, without Penstock; empty if there was none.
    """

    id: str
    suite: str
    kind: str
    observation: str
    action: str
    error: str


def python_of(suite: Suite) -> Path:
    """Returns the interpreter of a suite's virtual environment.

    Creates the environment if it does not exist or if the suite's requirements have changed. This takes minutes and
    needs the network.

    Raises:
        subprocess.CalledProcessError: The environment could not be created; pip prints the cause on stderr.
    """
    folder = FOLDER / suite.name
    python, installed = folder / "bin" / "python", folder / "installed.txt"
    requirements = "\n".join(suite.requirements) + "\n"
    if installed.is_file() and installed.read_text() == requirements:
        return python
    print(f"installing {suite.title} into {folder.relative_to(ROOT)}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True)
    paths = {"base": str(folder), "platbase": str(folder)}
    # A path alone would not be enough: Penstock is installed by a file of paths in that folder.
    seen = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    Path(sysconfig.get_path("purelib", vars=paths), "shared.pth").write_text(seen)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *suite.requirements], check=True)
    # Written last, so that an interrupted installation is repeated.
    installed.write_text(requirements)
    return python


def ids_of(suite: Suite) -> list[Listed]:
    """Returns the environments that a suite registers, in their order of registration.

    The list is made once for each installation, because it creates every environment.
    """
    python, output = python_of(suite), FOLDER / suite.name / "ids.jsonl"
    if not output.is_file():
        print(f"listing the environments of {suite.title}", flush=True)
        # Moved into place, so that an interrupted list is continued.
        partial = output.with_suffix(".partial")
        _list(suite, python, partial)
        partial.replace(output)
    # The line after an environment's creation replaces the line before it.
    found = {each["id"]: each for each in map(json.loads, output.read_text().splitlines())}
    return [
        Listed(
            id=each["id"],
            suite=suite.name,
            kind=suite.kind_of(each["id"], each["entry"]),
            observation=each.get("observation", ""),
            action=each.get("action", ""),
            error=each.get("error", "" if "observation" in each else "it ended the process"),
        )
        for each in found.values()
    ]


def _list(suite: Suite, python: Path, output: Path) -> None:
    """Writes the lines of `listing.py`, with another process after each environment that ends one."""
    command: list[str | Path] = [python, Path(__file__).with_name("listing.py"), output, *suite.modules]
    size = -1
    variables = os.environ | dict(suite.variables)
    while (ended := subprocess.run(command, capture_output=True, text=True, env=variables)).returncode:
        # A process that adds nothing fails before it creates an environment, and so would all others.
        if not output.exists() or output.stat().st_size <= size:
            raise RuntimeError(f"the environments of {suite.title} can't be listed:\n{ended.stderr}")
        size = output.stat().st_size

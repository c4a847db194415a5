"""Well-known packages that register environments, by the ids of these environments.

Gymnasium registers the environments of a package when the package is imported. With this table, an id is enough.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points

from penstock.machine.environment_names import OLDER_GAMES


@dataclass(frozen=True, slots=True)
class Package:
    """A package that registers environments.

    Attributes:
        module: Module of the package, which registers them when it is imported, unless another one does.
        ids: Pattern that all of their ids match.
        installation: Argument of `pip install`, unless an extra of Penstock installs the module.
        registration: Module of Penstock that registers them in place of the package.
    """

    module: str
    ids: re.Pattern[str]
    installation: str
    registration: str


def _package(module: str, ids: str, installation: str = "", registration: str = "") -> Package:
    return Package(module, re.compile(ids), installation, registration or module)


WELL_KNOWN = (
    _package(
        "ale_py",
        rf"ALE/|\w+(NoFrameskip|Deterministic)(-|$)|\w+-ram\w*(-|$)|({'|'.join(OLDER_GAMES)})(-v\d+)?$",
    ),
    _package("minigrid", r"(MiniGrid|BabyAI)-"),
    _package("stable_retro", r"retro/", registration="penstock.acting.environments.emulators.games"),
    _package(
        "highway_env",
        r"(highway|merge|roundabout|intersection|parking|racetrack|exit|two-way|u-turn|lane-keeping)-",
        "highway-env",
    ),
    _package("shimmy", r"(dm_control|bsuite|dm_lab|meltingpot)/", "'shimmy[dm-control]'"),
    _package(
        "mo_gymnasium",
        r"(mo|deep-sea-treasure|resource-gathering|fishwood|breakable-bottles|fruit-tree|four-room|minecart"
        r"|water-reservoir)-",
        "mo-gymnasium",
    ),
    _package("flappy_bird_gymnasium", r"FlappyBird-", "flappy-bird-gymnasium"),
    _package(
        "gymnasium_robotics",
        r"(Fetch|HandReach|HandManipulate|Adroit|AntMaze|PointMaze|FrankaKitchen|MaMuJoCo)",
        "gymnasium-robotics",
    ),
    _package("metaworld", r"Meta-World/", "metaworld"),
    _package("miniworld", r"MiniWorld-", "miniworld"),
    _package("procgen_gym", r"procgen_gym/", "procgen-gym"),
    _package("panda_gym", r"Panda\w+-", "panda-gym"),
)


def package_of(env_id: str, *, any_case: bool = False) -> Package | None:
    """Returns the well-known package that has an environment of this id (`any_case`: in any case), or None."""
    if any_case and (exact := package_of(env_id)):
        return exact
    flags = re.IGNORECASE if any_case else 0
    return next((each for each in WELL_KNOWN if re.match(each.ids.pattern, env_id, flags)), None)


def plugins() -> Iterator[str]:
    """Yields the modules of installed packages that declare to register environments when they are imported."""
    yield from (entry.module for entry in entry_points(group="gymnasium.envs"))

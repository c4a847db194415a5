"""Extensions: what installed packages register by entry points, such as losses, networks and environments.

A package names them in its metadata, such as

    [project.entry-points."penstock.losses"]
    dual_clip = "my_package.losses:DualClip"

Then `learner.loss = "dual_clip"` means my_package.losses:DualClip. Only metadata is read here: nothing is imported
until a setting names it.
"""

import importlib.metadata
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.machine.environment_names import is_file
from penstock.machine.spelling import question, similar

ENVIRONMENTS = "penstock.environments"
"""Group of environments, of which `environment.id` takes names."""

_GYMNASIUM = re.compile(r".*-v\d+")
"""Ids of Gymnasium, which no package may take over."""


@dataclass(frozen=True, slots=True)
class Extension:
    """An entry point of an installed package.

    Attributes:
        group: Group of entry points, such as "penstock.losses".
        name: Name in a setting.
        target: Class or function, as module:name.
        package: Name and version of the package.
    """

    group: str
    name: str
    target: str
    package: str

    def __str__(self) -> str:
        return f"{self.name} ({self.package}, {self.target})"


def extensions(group: str) -> list[Extension]:
    """Returns the extensions of a group, by name. It reads the metadata of all packages, which takes milliseconds."""
    found = {
        Extension(group, each.name, each.value.partition("[")[0].strip(), _package(each.dist))
        for each in importlib.metadata.entry_points(group=group)
    }
    return sorted(found, key=lambda each: (each.name, each.package))


def resolved(name: str, group: str, built_in: Sequence[str] = ()) -> str:
    """Returns the module and class of an extension's name; a name with a colon, a file, or one of Penstock, unchanged.

    A name of an environment that no package has registered is an id of Gymnasium, and is unchanged too.

    Raises `ValueError` with the known names if there is none, or if several packages have the name.
    """
    may_be_an_id = group == ENVIRONMENTS
    if (
        name in built_in
        or ":" in name
        or is_file(name)
        or (may_be_an_id and ("/" in name or _GYMNASIUM.fullmatch(name)))
    ):
        return name
    known = extensions(group)
    targets = {each.target: each for each in known if each.name == name}
    if len(targets) > 1:
        packages = " and ".join(str(each) for each in targets.values())
        raise ValueError(f"must not be {name!r}, which several packages register: {packages}; write module:name")
    if targets:
        (target,) = targets
        if ":" not in target:
            raise ValueError(
                f"must not be {name!r}, whose entry point has no class: {targets[target]}; correct it there"
            )
        return target
    if may_be_an_id:
        return name
    raise ValueError(" ".join(_unknown(name, group, [*built_in, *(each.name for each in known)])))


def _unknown(name: str, group: str, known: list[str]) -> Iterator[str]:
    yield f"must be file.py:name, package.module:name, or a name that a package registers ({group}); got {name!r}."
    yield f"Known: {', '.join(dict.fromkeys(known)) or 'none'}."
    if meant := question(similar(name, known)):
        yield meant


def _package(found: importlib.metadata.Distribution | None) -> str:
    return "unknown package" if found is None else f"{found.name} {found.version}"

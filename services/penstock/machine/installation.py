"""The kind of this installation, which decides the remedies that messages name.

Images name it in `PENSTOCK_INSTALLATION`: a command such as `pip install` can't be used in their containers.
Messages take such commands from here.
"""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

INSTALLATION = "PENSTOCK_INSTALLATION"
"""Variable that the images set to `image`, and docker-compose.yml to `compose`."""

Kind = Literal["packages", "image", "compose"]
"""Python packages, with `penstock train`; containers of the images; containers of docker-compose.yml."""

TRUST_CODE = " --trust-code"
"""Option of commands that read a run, after which they import the code that the run names."""

_RUN_DIR = "PENSTOCK__RUN__DIR"
"""Variable with the folder of the run of the Compose project."""


def kind(variables: Mapping[str, str] = os.environ) -> Kind:
    """Returns the kind of this installation."""
    match variables.get(INSTALLATION):
        case "image":
            return "image"
        case "compose":
            return "compose"
        case _:
            return "packages"


def program() -> str:
    """Returns the command that starts Penstock from here; with `make`, the virtual environment is not on the path."""
    if shutil.which("penstock"):
        return "penstock"
    given = sys.argv[0]
    return min(given, os.path.relpath(given), key=len) if Path(given).name == "penstock" else "python -m penstock"


def command_of(*words: str) -> str:
    """Returns a command of Penstock as a shell reads it. `program` may be several words."""
    return f"{program()} {shlex.join(words)}"


def how_to_install(package: str, in_image: str) -> str:
    """Returns how to install a package, as the end of a message.

    `package` is an argument of `pip install` as a shell reads it, and `in_image` the arguments for an image.
    """
    match kind():
        case "compose":
            return (
                f"add it to the image: set PENSTOCK_PACKAGES={in_image} in .env, then docker compose build and docker"
                " compose up -d"
            )
        case "image":
            return f"add it to the image: docker build -f Dockerfile.actor --build-arg PACKAGES='{in_image}' ."
        case "packages":
            return f"install it with: pip install {package}"


def how_to_find(module: str, *, itself: bool) -> str:
    """Returns how a process finds a module of the user, or one that it imports, as the end of a message."""
    match kind():
        case "packages":
            elsewhere = ", run penstock in the folder that contains it, or give the path of its file" if itself else ""
            return f"install {module!r}{elsewhere}"
        case _ if itself:
            return (
                f"mount its file into {Path.cwd()} of the containers, or add its package to the image"
                ' (docs/compose.md, "Your own environment")'
            )
        case _:
            return how_to_install(module, module)


def how_to_install_torch() -> str:
    """Returns how to install torch, which the actors' image lacks if its preset needs none, as the end of a message."""
    match kind():
        case "compose":
            return "set PENSTOCK_TORCH=yes in .env, then docker compose build and docker compose up -d"
        case "image":
            return "add it to the image: docker build -f Dockerfile.actor --build-arg TORCH=yes ."
        case "packages":
            return "install it with: pip install torch"


def how_to_resume(command: str, run_dir: str = "", settings: Mapping[str, str] | None = None) -> str:
    """Returns how to resume a run; `command` does it where `penstock train` runs the services.

    `run_dir` is the run's folder; empty: the run of this process. `settings`, as section.key, are changed.
    """
    changed = settings or {}
    variables = "".join(f"PENSTOCK__{name.replace('.', '__').upper()}={value} " for name, value in changed.items())
    match kind():
        case "compose":
            own, name = Path(os.environ.get(_RUN_DIR, "")).name, Path(run_dir).name
            other = f"PENSTOCK_RUN={name} " if name and name != own else ""
            return f"{variables}{other}docker compose up -d"
        case "image":
            return f"a new start of its services{f' with {variables}' if variables else ''}".rstrip()
        case "packages":
            options = (f" --{name.partition('.')[2].replace('_', '-')} {value}" for name, value in changed.items())
            return f"{command}{''.join(options)}"


def command_to_resume(run_dir: str, *, names_code: bool = False, settings: Mapping[str, str] | None = None) -> str:
    """Returns how to resume a run, by a command. Print it unfolded and without markup, so that it can be copied.

    `names_code` is whether the run names code that the user trusts, which a command imports only if told to.
    `settings`, as section.key, are changed.
    """
    command = f"{program()} train --resume {shlex.quote(run_dir)}{TRUST_CODE if names_code else ''}"
    return how_to_resume(command, run_dir, settings)


def how_to_renew() -> str:
    """Returns the command that renews certificates, as the end of a message."""
    if kind() == "compose":
        return (
            "docker compose run --rm certificates certificates /var/lib/penstock --renew; docker compose logs renewal"
            " shows why the daily renewal failed"
        )
    return "penstock certificates RUN --renew"


def how_to_start(command: str = "penstock train") -> str:
    """Returns how to start a run; `command` does it where `penstock train` runs the services."""
    return {"packages": command, "image": "the start of its services", "compose": "docker compose up -d"}[kind()]


def named_setting(option: str, setting: str) -> str:
    """Returns the name of a setting for users of this installation: the option, or the variable in containers."""
    variable = f"PENSTOCK__{setting.replace('.', '__').upper()}"
    return {"packages": option, "image": variable, "compose": f"{variable} in .env"}[kind()]

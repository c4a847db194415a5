"""Lists the environments that packages register with Gymnasium; run in the virtual environment of a suite.

Usage: python listing.py OUTPUT [MODULE ...]. Importing the modules registers the environments; without modules, the
list has those of Gymnasium itself. Each environment is created once by `gymnasium.make`, and
reset.

OUTPUT has a line for each environment before it is created, and another one after that. An environment may end the
process; the next process continues after it.
"""

import importlib
import json
import sys
from pathlib import Path

import gymnasium
from gymnasium import spaces


def short(space: gymnasium.Space[object]) -> str:
    """Returns a space in a few words: its class with its shape, its number of values or its keys."""
    match space:
        case spaces.Box():
            return f"Box{space.shape} {space.dtype}"
        case spaces.Discrete():
            return f"Discrete({space.n})"
        case spaces.MultiDiscrete() | spaces.MultiBinary():
            return f"{type(space).__name__}{space.shape}"
        case spaces.Dict():
            return f"Dict({', '.join(f'{key}: {short(part)}' for key, part in space.spaces.items())})"
        case spaces.Tuple():
            return f"Tuple({', '.join(short(part) for part in space.spaces)})"
        case _:
            return type(space).__name__


def entry_of(env_id: str) -> str:
    """Returns the entry point of an environment as `module:name`."""
    entry = gymnasium.registry[env_id].entry_point
    return entry if isinstance(entry, str) else f"{entry.__module__}:{getattr(entry, '__qualname__', '')}"


def created(env_id: str) -> dict[str, str]:
    """Returns the spaces of an environment, or the error of `gymnasium.make` or of the first reset."""
    try:
        environment = gymnasium.make(env_id)
        environment.reset(seed=0)
        found = {"observation": short(environment.observation_space), "action": short(environment.action_space)}
        environment.close()
    except Exception as error:
        return {"error": " ".join(f"{type(error).__name__}: {error}".split())}
    return found


def main() -> None:
    """Writes the list, or continues it."""
    output, *modules = sys.argv[1:]
    gymnasium.logger.min_level = gymnasium.logger.ERROR  # it would warn of each old version
    before = set(gymnasium.registry) if modules else set()
    for module in modules:
        importlib.import_module(module)
    with Path(output).open("a+") as file:
        file.seek(0)
        listed = {json.loads(line)["id"] for line in file}
        for env_id in gymnasium.registry:
            if env_id not in before | listed:
                begun = {"id": env_id, "entry": entry_of(env_id)}
                file.write(json.dumps(begun) + "\n")
                file.flush()
                file.write(json.dumps(begun | created(env_id)) + "\n")
                file.flush()


if __name__ == "__main__":
    main()

"""Python processes in which chosen packages can't be imported, as if they were not installed."""

import os
from pathlib import Path

_SITE = """
import sys
from importlib.machinery import PathFinder


class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        hidden = fullname.partition(".")[0] in {names!r}
        return None if hidden else super().find_spec(fullname, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = Hiding
"""


def hiding(folder: Path, *names: str) -> dict[str, str]:
    """Returns environment variables with which Python, and its child processes, don't find these top-level modules.

    `folder` receives the module that Python imports when it starts.
    """
    (folder / "sitecustomize.py").write_text(_SITE.replace("{names!r}", repr(names)))
    return {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])}

"""PufferLib's own settings of training, and its trainer without its output."""

import configparser
from ast import literal_eval
from pathlib import Path
from typing import Any

import pufferlib.pufferl


def defaults() -> dict[str, Any]:
    """Returns the settings of training in PufferLib's default.ini."""
    parser = configparser.ConfigParser()
    parser.read(Path(pufferlib.pufferl.__file__).parent / "config" / "default.ini")
    found: dict[str, Any] = {}
    for setting, text in parser["train"].items():
        try:
            found[setting] = literal_eval(text)
        except (SyntaxError, ValueError):
            found[setting] = text
    return found


def trainer(settings: dict[str, Any], environments: Any, policy: Any) -> Any:
    """Returns a `PuffeRL` that prints no dashboard and writes no checkpoints."""
    for unused in ("print_dashboard", "save_checkpoint"):
        setattr(pufferlib.pufferl.PuffeRL, unused, lambda self, **named: None)
    return pufferlib.pufferl.PuffeRL(settings, environments, policy)

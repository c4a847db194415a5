"""The settings that compose takes from the shell: `make compose-settings` writes their names to `settings.yaml`.

Compose gives a container only the variables that its file names. docker-compose.yml extends each service by this list,
but for the settings that it fixes itself.
"""

from pathlib import Path

import yaml

from penstock.cli.variables import SETTING_PREFIX
from penstock.config import Config, setting_names

FILE = Path(__file__).parent / "settings.yaml"
ROOT = Path(__file__).parents[2]
SERVICES = ("replay", "learner", "actor", "evaluator")
HEAD = """\
# Made by `make compose-settings`: the settings that a shell or .env may give to the services of docker-compose.yml.
# It fixes all others itself.
"""


def render() -> str:
    """The file's text."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    fixed = {name for service in SERVICES for name in services[service]["environment"]}
    # A variable of a section holds it as JSON.
    names = [f"{SETTING_PREFIX}{name.replace('.', '__').upper()}" for name in (*Config.model_fields, *setting_names())]
    listed = [name for name in names if name not in fixed]
    return HEAD + yaml.safe_dump({"services": {"settings": {"environment": listed}}})


if __name__ == "__main__":
    FILE.write_text(render())

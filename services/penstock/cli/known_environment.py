"""The id of the environment in a configuration, which is checked before anything that takes longer."""

from penstock.acting.environments.ids import checked_id
from penstock.config import Config
from penstock.presets import preset_environments


def with_known_environment(config: Config) -> tuple[Config, str]:
    """Returns the configuration with the registered id of its environment, and a line for the user if it was not given.

    Raises `ConfigurationError` if no installed package can have the environment.
    """
    given = config.environment.id
    # Modules that are imported first may register any id.
    found = given if config.environment.imports else checked_id(given, preset_environments())
    if found == given:
        return config, ""
    return config.changed({"environment": {"id": found}}), f"{given} is registered as {found}, which is used"

"""The help of commands that take settings: the common options first, and all settings on request."""

import argparse

from penstock.cli.commands.presets import preset_table
from penstock.cli.setting_options import add_settings, shown
from penstock.config import Config

_COMMON = {
    "run.total_steps": ("--total-steps", "N", "environment steps to train for, such as 500000, 500k or 1e6"),
    "run.stop_at_return": ("--stop-at-return", "X", "mean return of an evaluation at which to stop early"),
    "run.seed": ("--seed", "N", "seed of all random streams"),
    "train.actors": ("--actors", "N", "processes that step environments, or auto: as many as this machine can use"),
    "actor.environments": ("--envs-per-actor", "N", "environments of each actor"),
    "ppo.learning_rate": ("--learning-rate", "X", "learning rate at the start"),
    "sampling.fresh_fraction": ("--fresh-fraction", "X", "share of new data in a batch, the rest is replayed"),
    "run.dir": ("--run-dir", "FOLDER", "folder of the run"),
}
"""Settings that the short help shows, with an option, a name for its value and a description."""

_EXAMPLES = """examples:
  penstock train CartPole-v1
  penstock train LunarLander-v3 --total-steps 1M --actors 4 --seed 1
  penstock train my_file.py:MyEnv --environment.kwargs size=5
  penstock train Pendulum-v1 --ppo.epochs 5 --sampling.alpha 0"""


def help_page(
    prog: str, description: str, parser: argparse.ArgumentParser, config: Config, *, trains: bool, whole: bool
) -> str:
    """Returns the text of --help or, with all settings and their values in `config`, of --help-all.

    `parser` has the options of the command besides settings.
    """
    usage = f"{prog} {'[ENV] ' if trains else ''}[options] [--SECTION.SETTING VALUE ...]"
    page = argparse.ArgumentParser(
        prog=prog, description=description, add_help=False, parents=[parser], usage=usage, allow_abbrev=False
    )
    if whole:
        page.epilog = "A setting whose key is in one section alone may be given by the key: --learning-rate."
        add_settings(page, config)
        return page.format_help()
    group = page.add_argument_group("common settings")
    for name, (flag, value, text) in _COMMON.items():
        section, _, key = name.partition(".")
        group.add_argument(flag, metavar=value, help=f"{text} [{shown(getattr(getattr(config, section), key))}]")
    parts = [page.format_help()]
    if trains:
        parts += [_presets(), _EXAMPLES]
    parts.append(f"`{prog} --help-all` lists all settings, with the values that this command line would use.")
    return "\n".join(f"{part.strip()}\n" for part in parts)


def _presets() -> str:
    title = "presets (without --preset, the first one of the environment is used):"
    return "\n".join([title, *(f"  {line}" for line in preset_table())])

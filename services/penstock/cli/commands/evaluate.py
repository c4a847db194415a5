"""`penstock evaluate`: plays episodes with a trained policy, and films or shows one on request."""

import argparse
import secrets
from collections.abc import Sequence
from pathlib import Path

from penstock.cli.named import add_code_options, chosen_run
from penstock.cli.one_line_parser import OneLineParser
from penstock.errors import ConfigurationError
from penstock.machine import extras
from penstock.runs.folder import has_checkpoint

_SEED_BITS = 63


def command(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    named = _parse(arguments)
    # It imports Gymnasium, which --help and mistakes need not wait for.
    from penstock.cli.played_episodes import play_as_asked

    play_as_asked(named)
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = OneLineParser(prog="penstock evaluate", description="Play episodes with a trained policy.")
    parser.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help="run, whose best checkpoint is played, by its folder or its name in runs/, or checkpoint file"
        " (default: the newest run)",
    )
    parser.add_argument(
        "--episodes", type=int, default=20, help="episodes to play (default: 20); 0: only film or show one"
    )
    parser.add_argument("--stochastic", action="store_true", help="sample actions instead of taking the likeliest ones")
    parser.add_argument(
        "--seed", metavar="N", help="seed of the episodes; random: another one each time (default: the run's)"
    )
    parser.add_argument("--env-id", help="environment with the same spaces to play (default: the run's)")
    parser.add_argument(
        "--env-import",
        action="append",
        metavar="MODULE",
        help="module or file to import first (default: the run's)",
    )
    add_code_options(parser)
    parser.add_argument("--variant", type=int, help="number of the environment variant to play (default: all in turn)")
    parser.add_argument(
        "--record-video", "--video", "--render", action="store_true", help="film one episode, in the run's videos/"
    )
    parser.add_argument("--human", action="store_true", help="show one episode in a window")
    parser.add_argument("-o", "--output", type=Path, metavar="MP4", help="file of the film (implies --record-video)")
    parser.add_argument("--checkpoint", metavar="FILE", help="checkpoint file, in place of RUN")
    named: argparse.Namespace = parser.parse_args(list(arguments))
    if named.output is not None and not (place := named.output.parent).is_dir():
        raise ConfigurationError(f"{place}, the folder of --output, does not exist; create it, or name another")
    if named.run is not None and named.checkpoint is not None:
        raise ConfigurationError(f"both {named.run} and --checkpoint {named.checkpoint} are given; give one of them")
    named.run = chosen_run(named.run or named.checkpoint, has_checkpoint, "a checkpoint")
    named.record_video |= named.output is not None
    if named.record_video:
        extras.require("moviepy", "penstock evaluate --record-video")
    if named.episodes < (0 if named.record_video or named.human else 1):
        raise ConfigurationError(
            f"--episodes must be at least 1, or 0 with --record-video or --human; got {named.episodes}"
        )
    named.seed = _seed(named.seed)
    return named


def _seed(given: str | None) -> int | None:
    """Returns the seed of the episodes; None: the run's seed."""
    if given is None:
        return None
    if given == "random":
        return secrets.randbits(_SEED_BITS)
    if not given.isdecimal() or int(given) >= 2**_SEED_BITS:
        raise ConfigurationError(f"--seed must be a whole number from 0 to 2**63 - 1, or random; got {given!r}")
    return int(given)

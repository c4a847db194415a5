"""`make bench-masked-tasks`: Colour Lines to 5 times the score of random legal moves, beside MaskablePPO."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import gymnasium
import numpy as np
from rich.console import Console

from benchmarks.side_by_side import ROOT, Course, Run, in_turn, median, peer, prepare, ratios_of, show
from examples.colour_lines import POINTS_PER_BALL, ColourLines
from tests.support.results.provenance import of_this_run

OUTPUT = ROOT / "build" / "bench" / "masked_tasks.json"
TIMES_RANDOM = 5.0
MOST_WALL_S = 600.0
MOST_TIME = 0.5
"""Largest ratio of Penstock's wall time to that of MaskablePPO."""
MOST_STEPS = 1.0
"""Largest ratio of Penstock's environment steps to those of MaskablePPO."""
NETWORKS = ("moves", "kinds", "linear")
"""Networks of MaskablePPO, of `benchmarks.peers.maskable_loop`."""


@dataclass(frozen=True, slots=True)
class RandomScore:
    """The score of random legal moves.

    Attributes:
        games: Number of games.
        mean, standard_error: Mean score of a game, with its standard error.
        share_without_score: Share of games without a point.
        turns: Mean length of a game.
        turns_per_scoring_move: Turns per move that completes a line itself. Appearing balls complete others.
    """

    games: int
    mean: float
    standard_error: float
    share_without_score: float
    turns: float
    turns_per_scoring_move: float


def random_score(env_id: str, games: int) -> RandomScore:
    """Plays games of uniformly random legal moves."""
    env = gymnasium.make(env_id).unwrapped
    assert isinstance(env, ColourLines)
    random, scores = np.random.default_rng(0), np.zeros(games)
    turns = scoring_moves = 0
    for game in range(games):
        observation, _ = env.reset(seed=game)
        ended = False
        while not ended:
            balls = np.count_nonzero(observation["board"])
            action = np.int64(random.choice(np.flatnonzero(env.action_masks())))
            observation, score, ended, _, _ = env.step(action)
            scores[game] += score
            turns += 1
            # No balls appear after a move that completes a line.
            vanished = balls - np.count_nonzero(observation["board"])
            scoring_moves += score > 0 and vanished * POINTS_PER_BALL == score
    return RandomScore(
        games,
        float(scores.mean()),
        float(scores.std(ddof=1) / games**0.5),
        float((scores == 0).mean()),
        turns / games,
        turns / scoring_moves,
    )


def write(
    path: Path, random: RandomScore, threshold: float, runs: Sequence[Run], ratios: dict[str, float | None]
) -> None:
    """Writes the results as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    results = {
        "provenance": of_this_run(),
        "random": asdict(random),
        "threshold": threshold,
        "runs": [asdict(run) for run in runs],
        "ratios": ratios,
    }
    path.write_text(json.dumps(results, indent=2) + "\n")


def main() -> int:
    """Measures, prints and writes everything; returns 1 if a bound was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--games", type=int, default=20_000, help="games of random moves")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=["moves"], help="networks of MaskablePPO")
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps of a run, for schedules too")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    console = Console()
    prepare("sb3_contrib")
    random = random_score("ColourLines-v0", arguments.games)
    threshold = TIMES_RANDOM * random.mean
    course = Course("ColourLines-v0", "colour_lines", threshold, 4_096, arguments.steps)
    runs: list[Run] = []

    def keep(run: Run) -> None:
        # Written after every run, because a later one may fail.
        runs.append(run)
        write(arguments.output, random, threshold, runs, ratios_of(runs))

    def of_peer(network: str) -> Callable[[int], Run]:
        system, further = f"maskable_{network}", [f"--network={network}"]
        return lambda seed: peer(system, "sb3_contrib", "maskable_loop", course, seed, further)

    in_turn(course, arguments.rounds, {network: of_peer(network) for network in arguments.networks}, keep, console)
    console.print(
        f"random legal moves: {random.mean:.3f} with a standard error of {random.standard_error:.3f}, {random.games:,}"
        " games",
        highlight=False,
    )
    show(runs, console)
    console.print(f"written to {arguments.output}")
    wall_s = median([run for run in runs if run.system == "penstock"], "learn_wall_s_to_threshold")
    bounds = {"wall": MOST_TIME, "steps": MOST_STEPS}
    met = all(value is not None and value <= bounds[name.split()[0]] for name, value in ratios_of(runs).items())
    return 0 if met and wall_s is not None and wall_s <= MOST_WALL_S else 1


if __name__ == "__main__":
    sys.exit(main())

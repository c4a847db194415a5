"""MAP-Elites over the bodies of an arm: a search for good bodies of many kinds, which share one policy.

    pip install ribs
    python examples/map_elites.py

Every body is a variant of the environment, and one policy learns to control all of them while the search goes on. The
value of a body is its mean return under that policy, and its kind is its number of joints and the length of its first
link. A body that is no longer the best of its kind is retired, and new bodies are added.

The archive is printed once in a minute, and written to archive.csv in the run's folder at the end.
"""

import argparse
import csv
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ribs.archives import GridArchive
from ribs.emitters import GaussianEmitter
from ribs.schedulers import Scheduler

import penstock

JOINTS = 5
"""Joints of the largest body."""

EPISODES = 20
"""Training episodes in a body before its value counts."""

SHOWN_EVERY_S = 60.0


def body(solution: NDArray[np.float64]) -> dict[str, Any]:
    """Returns the arguments of the environment for a solution: the number of joints, and a size for each link."""
    joints, sizes = int(np.clip(solution[0], 2, JOINTS)), np.exp(np.clip(solution[1:], -1.0, 1.0))
    sizes[joints:] = 0.0
    return {"joints": joints, "lengths": [float(each) for each in np.round(sizes / sizes.sum(), 3)]}


def kind(arguments: dict[str, Any]) -> list[float]:
    """Returns the measures of a body: its number of joints, and the length of its first link."""
    return [arguments["joints"] + 0.5, arguments["lengths"][0]]


class Search:
    """A search among the bodies of a run: those in the archive, and new ones whose value is not known yet."""

    def __init__(self, folder: Path, count: int, seed: int) -> None:
        """Begins with `count` bodies, which are the first variants of the run."""
        self._folder = folder
        self._archive = GridArchive(
            solution_dim=1 + JOINTS,
            dims=(JOINTS - 1, 8),
            ranges=((2, JOINTS + 1), (0.0, 0.8)),
            extra_fields={"number": ((), np.int32)},
            seed=seed,
        )
        sigma = [1.0] + [0.25] * JOINTS
        emitter = GaussianEmitter(self._archive, x0=[3.5] + [0.0] * JOINTS, sigma=sigma, batch_size=count, seed=seed)
        self._scheduler = Scheduler(self._archive, [emitter])
        self.bodies = [body(each) for each in self._scheduler.ask()]
        self._numbers = list(range(count))

    def review(self) -> list[penstock.RunVariant]:
        """Returns the best body of each kind, after new ones took the places of worse ones, if due."""
        run = penstock.Run(self._folder)
        known = {each.number: each for each in run.list_variants()}
        if all(known[number].episodes >= EPISODES for number in self._numbers):
            played = {each.number for each in known.values() if not each.retired}
            old = self._archive.data()
            # The policy has learnt since, so the best bodies count by their newest returns.
            returns = np.array([known[number].return_mean for number in old["number"]], float)
            self._archive.add(old["solution"], returns, old["measures"], number=old["number"])
            self._scheduler.tell(
                np.array([known[number].return_mean for number in self._numbers], float),
                [kind(each) for each in self.bodies],
                number=self._numbers,
            )
            self.bodies = [body(each) for each in self._scheduler.ask()]
            self._numbers = run.add_variants(*self.bodies)
            run.retire_variants(*sorted(played.difference(self._archive.data("number").tolist())))
        return [known[number] for number in self._archive.data("number").tolist()]


def main() -> None:
    """Trains one policy while the search goes on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--total-steps", type=int, default=3_000_000)
    parser.add_argument("--bodies", type=int, default=12, help="new bodies in each generation")
    parser.add_argument("--run-dir", type=Path, default=Path("runs/map-elites"))
    parser.add_argument("--seed", type=int, default=0)
    named = parser.parse_args()
    search = Search(named.run_dir, named.bodies, named.seed)
    environment = {
        "variants": search.bodies,
        "vary": "episodes",
        # Numbers in the observation and the action of the largest body.
        "pad_spaces": (3 * JOINTS + 4, JOINTS),
        "show_variant": True,
    }
    shown, elites = time.monotonic(), list[penstock.RunVariant]()
    for record in penstock.stream(
        f"{Path(__file__).parent / 'arms.py'}:Arm",
        run_dir=str(named.run_dir),
        total_steps=named.total_steps,
        seed=named.seed,
        environment=environment,
        evaluation={"episodes": 100},
    ):
        if record["kind"] == "training":
            elites = search.review()
        if elites and time.monotonic() > shown + SHOWN_EVERY_S:
            shown = time.monotonic()
            print(f"{len(elites)} kinds of body, mean return {np.mean([each.return_mean for each in elites]):.1f}")
    with (named.run_dir / "archive.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["joints", "lengths", "return_mean", "episodes"])
        for each in elites:
            writer.writerow([each.arguments["joints"], each.arguments["lengths"], each.return_mean, each.episodes])
    print(f"{len(elites)} kinds of body are in {named.run_dir / 'archive.csv'}")


if __name__ == "__main__":
    main()

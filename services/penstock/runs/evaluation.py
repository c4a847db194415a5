"""The result of episodes that were played with a trained policy, as `penstock.evaluate` returns it."""

from dataclasses import dataclass

import numpy as np

from penstock.runs.metrics import return_text
from penstock.types.evaluation import InfoMetric, VariantReturns


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Episodes that a trained policy has played. `print` shows them as `penstock evaluate` does.

    For example::

        outcome = penstock.evaluate("runs/first", episodes=20, seed=1)
        print(outcome.return_mean, outcome.return_std, max(outcome.steps))

    Attributes:
        env_id: Id of the environment.
        checkpoint: File of the policy.
        version: Version of the policy, in trained batches.
        seed: Seed of the episodes.
        returns: Return of each episode, in units of the rewards.
        steps: Steps of each episode.
        unfinished: Episodes that were cut at `most_steps`. They count with their returns until then.
        most_steps: Most steps of an episode, `evaluation.max_episode_steps`.
        variants: Results in each environment variant that was played, by its number and its arguments as text; empty
            if the run has no variants.
        info_metrics: Numbers of the infos over the episodes, by `environment.info_metrics` of the run.
    """

    env_id: str
    checkpoint: str
    version: int
    seed: int
    returns: tuple[float, ...]
    steps: tuple[int, ...]
    unfinished: int
    most_steps: int
    variants: tuple[tuple[int, str, VariantReturns], ...] = ()
    info_metrics: tuple[InfoMetric, ...] = ()

    @property
    def episodes(self) -> int:
        """Number of episodes."""
        return len(self.returns)

    @property
    def return_mean(self) -> float:
        """Mean return of the episodes."""
        return float(np.mean(self.returns))

    @property
    def return_std(self) -> float:
        """Standard deviation of the return over the episodes."""
        return float(np.std(self.returns))

    def __str__(self) -> str:
        lowest, highest, length = min(self.returns), max(self.returns), float(np.mean(self.steps))
        lines = [
            f"{self.env_id}, version {self.version} of {self.checkpoint}, seed {self.seed}",
            f"return {return_text(self.return_mean, self.return_std)} over {self.episodes} episodes",
            f"from {return_text(lowest)} to {return_text(highest)}, mean length {length:.0f} steps",
        ]
        if self.unfinished:
            bound = f"{self.most_steps:,} steps"
            lines.append(f"{self.unfinished} episodes did not end within {bound}; their returns so far are counted")
        lines += [f"info {each}" for each in self.info_metrics]
        for number, arguments, found in self.variants:
            spread = return_text(found.return_mean, found.return_std)
            lines.append(f"variant {number} ({arguments}): return {spread}")
        return "\n".join(lines)

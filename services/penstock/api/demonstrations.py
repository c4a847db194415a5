"""`penstock.record_demonstrations`: records an expert for `sampling.demonstrations`."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from penstock.api.training import refuse_in_a_service
from penstock.cli.screen.notebook_display import step_bar
from penstock.config import Config
from penstock.errors import ConfigurationError
from penstock.machine.environment_names import Environment
from penstock.presets import configure

if TYPE_CHECKING:
    from penstock.acting.policies.experts import Expert
    from penstock.acting.policies.trained import TrainedPolicy


@dataclass(frozen=True, slots=True)
class Recording:
    """Demonstrations that `record_demonstrations` has recorded.

    For example::

        expert = penstock.load_policy("runs/first")
        recording = penstock.record_demonstrations(expert, "expert.safetensors", "CartPole-v1", steps=500)
        print(recording.steps, sum(recording.returns) / len(recording.returns))

    Attributes:
        file: The file.
        steps: Steps of the environment.
        returns: Returns of the episodes that ended.
        clipped_actions: Actions of which an element was outside of its bounds, and was clipped.
        has_log_probs: Whether the log probabilities of the actions are known.
    """

    file: Path
    steps: int
    returns: tuple[float, ...]
    clipped_actions: int
    has_log_probs: bool

    def __str__(self) -> str:
        mean = f"mean return {np.mean(self.returns):.4g}" if self.returns else "none ended"
        lines = [f"{self.steps:,} steps, {len(self.returns)} episodes ({mean}) in {self.file}"]
        if self.clipped_actions:
            lines.append(f"{self.clipped_actions:,} actions were outside of their bounds, and were clipped")
        if not self.has_log_probs:
            lines.append("the log probabilities of the actions are unknown; noise above 0 makes them known")
        return "\n".join(lines)


def record_demonstrations(
    expert: "Expert | TrainedPolicy",
    file: str | os.PathLike[str],
    what: Environment | Config | None = None,
    /,
    *,
    steps: int = 10_000,
    noise: float = 0.0,
    preset: str | None = None,
    progress: bool | None = None,
    **settings: object,
) -> Recording:
    """Records an expert's steps in an environment, for the setting `sampling.demonstrations` of runs.

    For example::

        def expert(observation):
            return int(observation[2] + 0.5 * observation[3] > 0.0)

        print(penstock.record_demonstrations(expert, "expert.safetensors", "CartPole-v1", noise=0.1))
        penstock.train("CartPole-v1", demonstrations="expert.safetensors")

    One environment is stepped in this process, the first variant of the run.

    Args:
        expert: Function of an observation that returns an action, both as `penstock.make` has them. With action masks,
            the mask is its second argument. Its method `reset`, if it has one, is called before each episode. Or a
            trained policy, whose actions are sampled.
        file: File to write or to replace, `NAME.safetensors`, in a folder that exists.
        what: The environment or the configuration, as for `penstock.train`.
        steps: Fewest steps to record.
        noise: Probability, 0 to 1, with which a choice is replaced by a random one; and deviation of the noise that is
            added to elements of boxes, in units of half of their range. Without it, continuous actions have no log
            probabilities (docs/demonstrations.md).
        preset: Name of a preset, as for `penstock.train`.
        progress: Whether to show the progress; None: in a terminal.
        settings: Settings, as for `penstock.train`. Those of the environment and of the policy must be the run's.

    Raises:
        ConfigurationError: The environment, the file or an argument can't be used, or the expert failed.
        EnvironmentFailed: The environment failed.
    """
    refuse_in_a_service("penstock.record_demonstrations")
    from penstock.apps.demonstrations import demonstrated
    from penstock.runs import demonstration_file

    path, suffix = Path(file), demonstration_file.SUFFIX
    if path.suffix != suffix:
        raise ConfigurationError(f"demonstrations are saved in a {suffix} file; name it {path}{suffix}")
    if not path.absolute().parent.is_dir():
        raise ConfigurationError(f"{path.parent}, the folder of the demonstrations, does not exist; create it")
    if steps < 1:
        raise ConfigurationError(f"steps must be at least 1; got {steps}")
    if not 0.0 <= noise <= 1.0:
        raise ConfigurationError(f"noise must be from 0 to 1; got {noise}")
    if not callable(expert) and not hasattr(expert, "act"):
        raise ConfigurationError(
            f"an expert is a function of an observation or a trained policy; got {type(expert).__name__}"
        )
    if what is None and preset is None:
        raise ConfigurationError('record_demonstrations needs an environment, such as "CartPole-v1", or a preset')
    config = what.changed(settings) if isinstance(what, Config) else configure(what, preset=preset, **settings)
    config.refuse_foreign_code()
    with step_bar(steps, progress) as show:
        found, episodes, clipped = demonstrated(config, expert, steps=steps, noise=noise, show=show)
    demonstration_file.write(path, found)
    returns = tuple(episode.episode_return for episode in episodes)
    return Recording(path, found.steps, returns, clipped, found.has_log_probs)

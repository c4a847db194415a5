"""An episode as a film: as the environment draws itself or, where the policy acts on images, as the policy sees it."""

import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from penstock.acting.environments import import_modules
from penstock.acting.trained import TrainedPolicy
from penstock.algo.spaces import is_image
from penstock.apps.environments import make_of
from penstock.config import EnvironmentConfig
from penstock.errors import ConfigurationError
from penstock.types import BoxSpace

_FRAMES_PER_S = 15
"""A quarter of the 60 of a television: Atari's policies see every fourth."""
_ENLARGEMENT = 4


def film(
    policy: TrainedPolicy, environment: EnvironmentConfig, kwargs: dict[str, Any], folder: Path, seed: int
) -> Path:
    """Plays and films an episode.

    Args:
        policy: Which plays.
        environment: What it plays.
        kwargs: Arguments of the variant to play.
        folder: Where the film goes.
        seed: Of the episode.

    Returns:
        The file.

    Raises:
        ConfigurationError: The environment shows no pictures.
    """
    folder.mkdir(parents=True, exist_ok=True)
    observation = policy.policy.spec.observation
    if isinstance(observation, BoxSpace) and is_image(observation):
        return _film_what_is_seen(policy, environment, kwargs, folder, seed)
    return _film_what_is_drawn(policy, environment, kwargs, folder, seed)


def _film_what_is_drawn(
    policy: TrainedPolicy, environment: EnvironmentConfig, kwargs: dict[str, Any], folder: Path, seed: int
) -> Path:
    from gymnasium.wrappers import RecordVideo

    # Frames are drawn without a screen, and SDL need not say that it found none.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    import_modules(environment.imports)
    try:
        drawn = gymnasium.make(environment.id, render_mode="rgb_array", **kwargs)
        filmed = RecordVideo(drawn, str(folder), name_prefix=f"version-{policy.version}", disable_logger=True)
    except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
        raise ConfigurationError(f"can't film {environment.id}: {error}") from None
    observation, _ = filmed.reset(seed=seed % 2**31)
    ended = False
    while not ended:
        observation, _, terminated, truncated, _ = filmed.step(policy.act(observation))
        ended = terminated or truncated
    filmed.close()  # type: ignore[no-untyped-call]
    return max(folder.glob("*.mp4"), key=lambda file: file.stat().st_mtime)


def _film_what_is_seen(
    policy: TrainedPolicy, environment: EnvironmentConfig, kwargs: dict[str, Any], folder: Path, seed: int
) -> Path:
    from moviepy import ImageSequenceClip

    environments = make_of(environment, 1, [kwargs])
    environments.reset([seed])
    pictures, ended = [_picture(environments.observation[0])], False
    while not ended:
        action = np.asarray(policy.act(environments.acting_observation[0]))
        outcome = environments.step(action[None])
        pictures.append(_picture(environments.observation[0]))
        ended = bool(outcome.terminated[0] or outcome.truncated[0])
    environments.close()
    file = folder / f"version-{policy.version}-as-seen.mp4"
    ImageSequenceClip(pictures, fps=_FRAMES_PER_S).write_videofile(str(file), logger=None)
    return file


def _picture(frame: NDArray[np.generic]) -> NDArray[np.uint8]:
    """[C, H, W] as an enlarged [H, W, 3]; of other than three channels, the first one in grey."""
    colours = frame if len(frame) == 3 else np.repeat(frame[:1], 3, axis=0)
    rows = np.moveaxis(np.asarray(colours, np.uint8), 0, 2)
    return rows.repeat(_ENLARGEMENT, axis=0).repeat(_ENLARGEMENT, axis=1)

"""Films of episodes: renderings of the environment or, for a policy that acts on images, its observations."""

import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from penstock.acting.registry import find, import_modules
from penstock.acting.trained import TrainedPolicy
from penstock.apps.environments import variants_of
from penstock.config import EnvironmentConfig
from penstock.errors import ConfigurationError
from penstock.types.spaces import is_image

_FRAMES_PER_S = 15
"""Frames per second of a film of observations: Atari renders 60, and its policies receive every fourth."""
_ENLARGEMENT = 4


def film(
    policy: TrainedPolicy, environment: EnvironmentConfig, kwargs: dict[str, Any], *, folder: Path, seed: int
) -> Path:
    """Films an episode with the variant's arguments in the folder; returns the film's path.

    Raises `ConfigurationError` if the environment can't be made or rendered.
    """
    folder.mkdir(parents=True, exist_ok=True)
    film_into = _film_observations if is_image(policy.policy.spec.observation) else _film_rendering
    return film_into(policy, environment, kwargs, folder=folder, seed=seed)


def _film_rendering(
    policy: TrainedPolicy, environment: EnvironmentConfig, kwargs: dict[str, Any], *, folder: Path, seed: int
) -> Path:
    from gymnasium.wrappers import RecordVideo

    # Frames are rendered off screen; this keeps SDL from complaining that there is no screen.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    import_modules(environment.imports)
    try:
        rendered = gymnasium.make(find(environment.id), render_mode="rgb_array", **kwargs)
        filmed = RecordVideo(rendered, str(folder), name_prefix=f"version-{policy.version}", disable_logger=True)
    except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
        raise ConfigurationError(f"can't film {environment.id}: {error}") from None
    observation, _ = filmed.reset(seed=seed % 2**31)
    ended = False
    while not ended:
        observation, _, terminated, truncated, _ = filmed.step(policy.act(observation))
        ended = terminated or truncated
    filmed.close()  # type: ignore[no-untyped-call]
    return max(folder.glob("*.mp4"), key=lambda file: file.stat().st_mtime)


def _film_observations(
    policy: TrainedPolicy, environment: EnvironmentConfig, kwargs: dict[str, Any], *, folder: Path, seed: int
) -> Path:
    from moviepy import ImageSequenceClip

    environments = variants_of(environment, [kwargs]).make_mixed(1)
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
    """Converts a frame [C, H, W] to an enlarged picture <uint8>[H, W, 3]; unless C is 3, it shows channel 0 in grey."""
    colours = frame if len(frame) == 3 else np.repeat(frame[:1], 3, axis=0)
    rows = np.moveaxis(np.asarray(colours, np.uint8), 0, 2)
    return rows.repeat(_ENLARGEMENT, axis=0).repeat(_ENLARGEMENT, axis=1)

"""Films of episodes: renderings of the environment or, if it has none and its policy acts on images, these images."""

import contextlib
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from penstock.acting.environments.frames import with_frames
from penstock.acting.environments.interfaces.parallel_agents import UnevenRows, is_of_agents
from penstock.acting.environments.registry import import_and_find, make
from penstock.acting.environments.single_environments import SingleEnvironments
from penstock.acting.environments.vectors import AgentEnvironments, make_environments
from penstock.acting.environments.wrappers.named import wrapped
from penstock.acting.evaluation import evaluate
from penstock.acting.policies.saved_policies import SavedPolicy
from penstock.acting.values import masks
from penstock.acting.values.leaves import flatten
from penstock.acting.values.spaces import describe
from penstock.apps.environments import making_of, variants_of
from penstock.config import EnvironmentConfig
from penstock.errors import ConfigurationError, PenstockError
from penstock.machine import extras
from penstock.machine.files import temporary_of
from penstock.machine.foreign_errors import describe as describe_error
from penstock.machine.module_imports import loading
from penstock.machine.system_errors import in_words
from penstock.types.evaluation import EvaluationTask
from penstock.types.spaces import is_image

_FRAMES_PER_S = 15
"""Frames per second of a film of observations: Atari renders 60, and its policies receive every fourth."""
_RENDERED_PER_S = 30
"""Frames per second of the film of an environment whose metadata has no render_fps."""
_AGENTS_PER_S = 10
"""Frames per second of the film of several agents, as PettingZoo's particles have."""
_ENLARGEMENT = 4
_MOST_PICTURES = 10_000
"""Pictures after which a film ends before its episode, which may never end. Atari's longest have 6,750 steps."""

_NEEDED = (
    "a film needs an environment whose constructor takes render_mode, whose metadata['render_modes'] has 'rgb_array',"
    " and whose render returns an array of shape (height, width, 3)"
)
_OPENGL = (
    "without a screen, MuJoCo draws with MUJOCO_GL=egl (Debian: apt install libegl1) or MUJOCO_GL=osmesa (libosmesa6)"
)


def film(
    policy: SavedPolicy,
    environment: EnvironmentConfig,
    kwargs: dict[str, Any],
    *,
    folder: Path,
    seed: int,
    output: Path | None,
) -> Path:
    """Films an episode with the variant's arguments; returns the film's path, `output` or one in the folder.

    The film has at most the first 10,000 pictures. They are written one by one, so that a long film needs no memory.

    Raises `ConfigurationError` if the environment can't be made or rendered, or the folder can't be written.
    """
    if _has_agents(environment):
        film_into = _film_agents
    else:
        film_into = _film_rendering if _is_rendered(policy, environment, kwargs) else _film_observations
    private, kept = _private_folder(folder if output is None else None), False
    try:
        filmed = film_into(policy, environment, kwargs, folder=private, seed=seed)
        place = folder / filmed.name if output is None else output / filmed.name if output.is_dir() else output
        copied = temporary_of(place)
        try:
            shutil.copyfile(filmed, copied)
            return copied.replace(place)
        except OSError as error:
            kept = True
            with contextlib.suppress(OSError):
                copied.unlink(missing_ok=True)
            raise ConfigurationError(f"can't write {place}: {in_words(error, place)}; the film is {filmed}") from None
    finally:
        if not kept:
            shutil.rmtree(private, ignore_errors=True)


def check_film(policy: SavedPolicy, environment: EnvironmentConfig, kwargs: dict[str, Any]) -> None:
    """Raises `ConfigurationError` if `film` would fail because the environment can't be made or rendered."""
    if _has_agents(environment):
        _rendered_agents(environment, kwargs).close()
    elif _is_rendered(policy, environment, kwargs):
        with _quiet():
            _rendered(environment, kwargs).close()


def _has_agents(environment: EnvironmentConfig) -> bool:
    return is_of_agents(import_and_find(environment.id, environment.imports, environment.python))


def _is_rendered(policy: SavedPolicy, environment: EnvironmentConfig, kwargs: dict[str, Any]) -> bool:
    """Returns whether to film renderings: the policy does not act on images, or the environment has other pictures."""
    leaves = policy.spec.observation.leaves
    if len(leaves) != 1 or not is_image(leaves[0].space):
        return True
    if environment.vectorization == "native":
        return False
    making = replace(making_of(environment, kwargs), vectorization="sync", use_masks=False, info_metrics=())
    made = make_environments(making, 1)
    assert isinstance(made, SingleEnvironments)
    with contextlib.closing(made):
        return "rgb_array" in made.envs[0].metadata.get("render_modes", ())


def _private_folder(folder: Path | None) -> Path:
    """Makes a folder in which a program that makes films finds no link in the place of its file.

    It is in this folder; None: in that for temporary files.
    """
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=".film-", dir=folder))
    except OSError as error:
        # Containers mount the runs read-only.
        raise ConfigurationError(
            f"can't write a film in {folder}: {in_words(error, folder, 'name its file with --output')}"
        ) from None


def _rendered(environment: EnvironmentConfig, kwargs: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    """Makes an environment that has rendered its first observation."""
    # Frames are rendered off screen; this keeps SDL from complaining that there is no screen.
    os.environ["SDL_VIDEODRIVER"] = "dummy"
    # MuJoCo looks for a screen otherwise.
    if sys.platform == "linux" and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")
    found = import_and_find(environment.id, environment.imports, environment.python)
    with _explained(environment.id):
        rendered = make(found, kwargs, render_mode="rgb_array")
        rendered = wrapped(rendered, environment.id, making_of(environment, kwargs).wrappers)
        # Many environments import their renderer when they draw.
        rendered.reset()
        _check_picture(environment.id, rendered.render())
    return rendered


@contextlib.contextmanager
def _explained(env_id: str) -> Iterator[None]:
    """Turns an exception of an environment that is made or drawn into a one-line error with the remedy."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        if module := extras.missing_module(error):
            raise extras.lacking(f"the film of {env_id}", module) from None
        needed = _OPENGL if "mujoco" in sys.modules else _NEEDED
        raise ConfigurationError(f"can't film {env_id}: {describe_error(error)}; {needed}") from None


def _check_picture(env_id: str, picture: Any) -> None:
    if np.ndim(picture) != 3:
        raise ConfigurationError(f"can't film {env_id}: render returned no picture; {_NEEDED}")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides warnings of Gymnasium about faults that an error will report."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class _Film(contextlib.AbstractContextManager["_Film"]):
    """A film that is being written. `full` is whether it has the most pictures; it ignores further ones."""

    def __init__(self, file: Path, frames_per_s: float) -> None:
        self.file, self.full = file, False
        self._frames_per_s, self._pictures = frames_per_s, 0
        self._writer: Any = None

    def add(self, picture: Any) -> None:
        """Appends a picture <uint8>[H, W, 3]. All have the size of the first."""
        from moviepy.video.io.ffmpeg_writer import FFMPEG_VideoWriter

        if self._writer is None:
            height, width, _ = picture.shape
            self._writer = FFMPEG_VideoWriter(str(self.file), (width, height), self._frames_per_s)
        if not self.full:
            # Without a fourth channel, which is the opacity.
            self._writer.write_frame(np.asarray(picture, np.uint8)[..., :3])
            self._pictures += 1
        self.full = self._pictures == _MOST_PICTURES

    def __exit__(self, *exception: object) -> None:
        if self._writer is not None:
            self._writer.close()


class _Filmed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that is filmed in each reset and each step."""

    def __init__(self, env: gymnasium.Env[Any, Any], film: _Film) -> None:
        super().__init__(env)
        self._film = film

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        begun = super().reset(seed=seed, options=options)
        self._film.add(self.render())
        return begun

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        outcome = super().step(action)
        self._film.add(self.render())
        return outcome


def _film_rendering(
    policy: SavedPolicy, environment: EnvironmentConfig, kwargs: dict[str, Any], *, folder: Path, seed: int
) -> Path:
    trained, file = policy.spec, folder / f"version-{policy.weights.version}-episode.mp4"
    with _quiet():
        rendered = _rendered(environment, kwargs)
    with _Film(file, rendered.metadata.get("render_fps", _RENDERED_PER_S)) as film:
        filmed = _Filmed(rendered, film)
        spec = describe(environment.id, filmed.observation_space, filmed.action_space, mask_bits=trained.mask_bits)
        source = masks.find(filmed, filmed.observation_space, spec.action, _with_mask) if spec.mask_bits else None
        environments = with_frames(SingleEnvironments([filmed], spec, masks=source), trained.frames)
        task = EvaluationTask(0, policy.weights, 1, True, seed, max_episode_steps=_MOST_PICTURES - 1)
        evaluate(task, environments, lambda: False, module=policy.network.module)
        environments.close()
    return file


def _film_agents(
    policy: SavedPolicy, environment: EnvironmentConfig, kwargs: dict[str, Any], *, folder: Path, seed: int
) -> Path:
    """Films an episode of all agents of an environment."""
    made, file = _rendered_agents(environment, kwargs), folder / f"version-{policy.weights.version}-episode.mp4"
    with contextlib.closing(made), _Film(file, _AGENTS_PER_S) as filmed:

        def look() -> bool:
            filmed.add(made.render())
            return filmed.full

        task = EvaluationTask(0, policy.weights, made.count, True, seed, max_episode_steps=_MOST_PICTURES)
        evaluate(task, with_frames(made, policy.spec.frames), look, module=policy.network.module)
        look()
    return file


def _rendered_agents(environment: EnvironmentConfig, kwargs: dict[str, Any]) -> AgentEnvironments:
    """Makes an environment of several agents that has rendered its first observation."""
    os.environ["SDL_VIDEODRIVER"] = "dummy"
    making = replace(
        making_of(environment, {**kwargs, "render_mode": "rgb_array"}), vectorization="auto", info_metrics=()
    )
    try:
        made = make_environments(making, 1)
    except UnevenRows as uneven:
        made = make_environments(making, uneven.filled(1))
    assert isinstance(made, AgentEnvironments)
    with _explained(environment.id):
        made.reset(range(made.count))
        _check_picture(environment.id, made.render())
    return made


def _film_observations(
    policy: SavedPolicy, environment: EnvironmentConfig, kwargs: dict[str, Any], *, folder: Path, seed: int
) -> Path:
    environments, ended = variants_of(environment, [kwargs]).make_mixed(1), False
    environments.reset([seed])
    # It imports torch, which this machine may lack.
    with loading():
        from penstock.acting.policies.trained import TrainedPolicy

    trained, tree = TrainedPolicy(policy.weights, module=policy.network.module), policy.spec.action
    with _Film(folder / f"version-{policy.weights.version}-as-seen.mp4", _FRAMES_PER_S) as film:
        film.add(_picture(environments.observation[0][0]))
        while not (ended or film.full):
            mask = None if environments.action_mask is None else environments.action_mask[0]
            action = trained.act(environments.acting_observation[0][0], action_mask=mask)
            outcome = environments.step(tuple(np.asarray(leaf)[None] for leaf in flatten(tree, action)))
            film.add(_picture(environments.observation[0][0]))
            ended = bool(outcome.terminated[0] or outcome.truncated[0])
    environments.close()
    return film.file


def _with_mask() -> dict[str, bool]:
    """Returns an info that says that there are masks: the policy was trained with them."""
    return {masks.KEY: True}


def _picture(frame: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Converts a frame [C, H, W] to an enlarged picture <uint8>[H, W, 3]; unless C is 3, it shows channel 0 in grey."""
    colours = frame if len(frame) == 3 else np.repeat(frame[:1], 3, axis=0)
    rows = np.moveaxis(np.asarray(colours, np.uint8), 0, 2)
    return rows.repeat(_ENLARGEMENT, axis=0).repeat(_ENLARGEMENT, axis=1)

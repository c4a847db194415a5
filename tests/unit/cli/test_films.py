"""Where films are written if the folder of the run can't be, and environments that can't be filmed."""

import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from penstock.acting.environments.frames import with_frames
from penstock.acting.policies.saved_policies import SavedPolicy, read_policy
from penstock.cli.commands import evaluate
from penstock.cli.film import check_film, film
from penstock.config import EnvironmentConfig
from penstock.errors import ConfigurationError
from penstock.types.spaces import EnvironmentSpec
from tests.support.environments.made import make_environments
from tests.support.environments.tiny import spec_of
from tests.support.training.policies import fresh_weights

ENV_ID = "CartPole-v1"


def test_a_film_of_a_read_only_run_needs_a_name_and_is_written_there(tmp_path: Path) -> None:
    pytest.importorskip("moviepy")
    pytest.importorskip("pygame")
    # Root can write to every folder, so a file is in the place of a read-only one.
    (tmp_path / "run").touch()
    policy, environment = _policy(tmp_path), EnvironmentConfig(id=ENV_ID)
    folder, named = tmp_path / "run" / "videos", tmp_path / "film.mp4"
    with pytest.raises(ConfigurationError, match=r"can't write a film in .*videos: .*; name its file with --output"):
        film(policy, environment, {}, folder=folder, seed=1, output=None)
    assert film(policy, environment, {}, folder=folder, seed=1, output=named) == named
    assert named.stat().st_size > 1_000


def test_a_film_of_an_episode_without_an_end_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cli.film._MOST_PICTURES", 5)
    pytest.importorskip("moviepy")
    monkeypatch.setitem(
        gymnasium.registry, "Endless-v0", gymnasium.envs.registration.EnvSpec("Endless-v0", lambda **kwargs: _Endless())
    )
    output = tmp_path / "film.mp4"
    film(_policy(tmp_path), EnvironmentConfig(id="Endless-v0"), {}, folder=tmp_path, seed=1, output=output)
    assert _pictures(output) == 5


def test_mujoco_draws_without_a_screen_unless_the_user_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        gymnasium.registry, "Endless-v0", gymnasium.envs.registration.EnvSpec("Endless-v0", lambda **kwargs: _Endless())
    )
    monkeypatch.delenv("DISPLAY", raising=False)
    for given, expected in ((None, "egl"), ("osmesa", "osmesa")):
        monkeypatch.delenv("MUJOCO_GL", raising=False)
        if given:
            monkeypatch.setenv("MUJOCO_GL", given)
        check_film(_policy(tmp_path), EnvironmentConfig(id="Endless-v0"), {})
        assert os.environ["MUJOCO_GL"] == expected


@pytest.mark.parametrize(("modes", "name"), [(["rgb_array"], "episode"), ([], "as-seen")])
def test_a_policy_that_acts_on_images_is_filmed_as_rendered_if_there_is_a_rendering(
    modes: list[str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cli.film._MOST_PICTURES", 3)
    pytest.importorskip("moviepy")
    monkeypatch.setattr(_Pictured, "metadata", {"render_modes": modes})
    monkeypatch.setitem(
        gymnasium.registry,
        "Pictured-v0",
        gymnasium.envs.registration.EnvSpec("Pictured-v0", lambda **kwargs: _Pictured(**kwargs)),
    )
    spec = with_frames(make_environments("Pictured-v0", 1, kwargs={}), 1).spec
    policy, environment = _policy(tmp_path, spec), EnvironmentConfig(id="Pictured-v0")
    check_film(policy, environment, {})
    made = film(policy, environment, {}, folder=tmp_path, seed=1, output=None)
    assert made.name.endswith(f"{name}.mp4") and _pictures(made) == 3


def _policy(folder: Path, spec: EnvironmentSpec | None = None) -> SavedPolicy:
    """Returns an untrained policy, which it writes into the folder."""
    file = folder / "policy.safetensors"
    file.write_bytes(fresh_weights(spec or spec_of(ENV_ID)).data)
    return read_policy(file)


def _pictures(file: Path) -> int:
    from moviepy.video.io.ffmpeg_reader import ffmpeg_parse_infos

    return int(ffmpeg_parse_infos(str(file))["video_n_frames"])


class _Bare(gymnasium.Env[Any, Any]):
    observation_space, action_space = gymnasium.spaces.Box(-1.0, 1.0, (4,)), gymnasium.spaces.Discrete(2)

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        return np.zeros(4, np.float32), {}


class _WithMode(_Bare):
    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode


class _Unrendered(_WithMode):
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012


class _Pictureless(_Unrendered):
    def render(self) -> None: ...


class _Endless(_Unrendered):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(4, np.float32), 1.0, False, False, {}

    def render(self) -> Any:
        return np.zeros((32, 32, 4), np.uint8)


class _Pictured(_Endless):
    observation_space: Any = gymnasium.spaces.Box(0, 255, (40, 40), np.uint8)

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        return np.zeros((40, 40), np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros((40, 40), np.uint8), 1.0, False, False, {}


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        (_Bare, "render_mode"),
        (_WithMode, "render_mode"),
        (_Unrendered, "NotImplementedError"),
        (_Pictureless, "returned no picture"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_a_film_needs_is_said_before_an_episode_is_played(
    environment: type[_Bare], reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    env_id = f"Filmed{environment.__name__}-v0"
    monkeypatch.setitem(
        gymnasium.registry, env_id, gymnasium.envs.registration.EnvSpec(env_id, lambda **kwargs: environment(**kwargs))
    )
    with pytest.raises(
        ConfigurationError, match=rf"can't film {env_id}: .*{reason}.*; a film needs an environment whose"
    ):
        check_film(_policy(tmp_path), EnvironmentConfig(id=env_id), {})


def test_a_missing_folder_of_the_film_is_an_error_before_an_episode_is_played(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none, the folder of --output, does not exist"):
        evaluate.command(["--output", str(tmp_path / "none" / "film.mp4")])

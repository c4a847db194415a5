"""Where films are written if the folder of the run can't be."""

from pathlib import Path

import pytest

from helpers.environments import fresh_weights, spec_of
from penstock.acting.trained import TrainedPolicy
from penstock.cli.film import film
from penstock.config import EnvironmentConfig
from penstock.errors import ConfigurationError

ENV_ID = "CartPole-v1"


def test_a_film_of_a_read_only_run_needs_a_name_and_is_written_there(tmp_path: Path) -> None:
    pytest.importorskip("moviepy")
    pytest.importorskip("pygame")
    # Root can write to every folder, so a file is in the place of a read-only one.
    (tmp_path / "run").touch()
    policy, environment = TrainedPolicy(fresh_weights(spec_of(ENV_ID))), EnvironmentConfig(id=ENV_ID)
    folder, named = tmp_path / "run" / "videos", tmp_path / "film.mp4"
    with pytest.raises(ConfigurationError, match=r"can't write a film in .*videos: .*; name its file with --output"):
        film(policy, environment, {}, folder=folder, seed=1, output=None)
    assert film(policy, environment, {}, folder=folder, seed=1, output=named) == named
    assert named.stat().st_size > 1_000

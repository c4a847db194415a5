"""`penstock.record_demonstrations`: what it records of functions and policies, and what it refuses."""

import re
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

import penstock
import tests.support.environments.exact_tasks
import tests.support.environments.failing  # noqa: F401 - registers its environments
from penstock.acting.policies.trained import TrainedPolicy
from penstock.errors import ConfigurationError, EnvironmentFailed
from penstock.runs.demonstration_file import read
from tests.support.environments.tiny import spec_of
from tests.support.training.policies import fresh_weights


def pushing(observation: Any) -> int:
    return int(observation[2] + 0.5 * observation[3] > 0.0)


def test_an_expert_is_recorded_with_its_returns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "expert.safetensors"
    found = penstock.record_demonstrations(pushing, file, "CartPole-v1", steps=1_500, seed=1)
    recorded = read(file)
    assert found.steps == recorded.steps >= 1_500 and found.has_log_probs and recorded.has_log_probs
    assert len(found.returns) >= 2 and all(400.0 < each <= 500.0 for each in found.returns)
    assert not recorded.columns["behaviour_log_prob"].any()
    observation, action = recorded.columns["observation"], recorded.columns["action"]
    assert len(observation) == len(action) + 1
    valid = recorded.columns["valid"]
    np.testing.assert_array_equal(action[valid], [pushing(each) for each in observation[:-1][valid]])
    assert re.fullmatch(r"1,\d{3} steps, \d episodes \(mean return \d{3}(\.\d)?\) in .*", str(found))
    assert capsys.readouterr().err == ""


def test_progress_is_shown_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    penstock.record_demonstrations(pushing, tmp_path / "e.safetensors", "CartPole-v1", steps=300, progress=True)
    assert "steps" in capsys.readouterr().err


def test_the_actions_of_a_trained_policy_are_sampled_with_their_log_probabilities(tmp_path: Path) -> None:
    policy = TrainedPolicy(fresh_weights(spec_of("Pendulum-v1")))
    found = penstock.record_demonstrations(policy, tmp_path / "e.safetensors", "Pendulum-v1", steps=300)
    log_probs = read(found.file).columns["behaviour_log_prob"]
    assert found.has_log_probs and log_probs.std() > 0.1
    assert "none ended" in str(penstock.record_demonstrations(policy, found.file, "Pendulum-v1", steps=1))


def test_clipped_actions_and_unknown_probabilities_are_named(tmp_path: Path) -> None:
    found = penstock.record_demonstrations(lambda o: [9.0], tmp_path / "e.safetensors", "Pendulum-v1", steps=100)
    assert found.clipped_actions == 128 and not found.has_log_probs
    assert "128 actions were outside of their bounds, and were clipped" in str(found)
    assert "noise above 0 makes them known" in str(found)


def test_an_expert_with_masks_gets_them(tmp_path: Path) -> None:
    found = penstock.record_demonstrations(
        lambda observation, mask: int(mask.argmax()), tmp_path / "e.safetensors", "MaskedChoice-v0", steps=50
    )
    masks = np.unpackbits(read(found.file).columns["action_mask"], axis=-1, bitorder="little")
    actions = read(found.file).columns["action"]
    np.testing.assert_array_equal(actions, masks.argmax(-1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"file": "expert.npz"}, "saved in a .safetensors file; name it expert.npz.safetensors"),
        ({"file": "none/e.safetensors"}, "none, the folder of the demonstrations, does not exist"),
        ({"steps": 0}, "steps must be at least 1; got 0"),
        ({"noise": 1.5}, "noise must be from 0 to 1; got 1.5"),
        ({"expert": 3}, "an expert is a function of an observation or a trained policy; got int"),
        ({"what": None}, "needs an environment"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(
    arguments: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given: dict[str, Any] = {"expert": pushing, "file": "e.safetensors", "what": "CartPole-v1", **arguments}
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        penstock.record_demonstrations(given.pop("expert"), given.pop("file"), given.pop("what"), **given)
    assert not list(tmp_path.iterdir())


class Repeating(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Returns recorded observations and rewards, whatever the action, in episodes of 4 and 6 steps."""

    observation_space = gymnasium.spaces.Box(-100.0, 100.0, (1,))
    action_space = gymnasium.spaces.Discrete(3)
    recorded: ClassVar = [(np.arange(5.0), [0, 1, 2, 1]), (np.arange(10.0, 17.0), [2] * 6)]

    def __init__(self) -> None:
        self.episode = -1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.episode, self.step_number = (self.episode + 1) % 2, 0
        return self._observed(), {}

    def step(self, action: np.int64) -> Any:
        self.step_number += 1
        _, actions = self.recorded[self.episode]
        return self._observed(), 10.0 * self.step_number, self.step_number == len(actions), False, {}

    def _observed(self) -> NDArray[np.float32]:
        return self.recorded[self.episode][0][[self.step_number]].astype(np.float32)


def test_recorded_data_are_repeated_by_an_environment_and_an_expert(tmp_path: Path) -> None:
    """As the page on demonstrations describes it."""
    taken = {
        float(at): action for seen, actions in Repeating.recorded for at, action in zip(seen, actions, strict=False)
    }
    file = tmp_path / "e.safetensors"
    found = penstock.record_demonstrations(lambda seen: taken[float(seen[0])], file, Repeating, steps=20)
    columns = read(file).columns
    # The check of the environment has reset it once.
    assert found.returns[:2] == (210.0, 100.0)
    valid = columns["valid"][:12]
    np.testing.assert_array_equal(columns["observation"][:13, 0], [*range(10, 17), *range(5), 10])
    np.testing.assert_array_equal(columns["action"][:12][valid], [*[2] * 6, 0, 1, 2, 1])
    np.testing.assert_array_equal(np.flatnonzero(~valid), [6, 11])
    np.testing.assert_array_equal(np.flatnonzero(columns["terminated"][:12]), [5, 10])


def test_a_policy_of_other_spaces_or_with_noise_is_refused(tmp_path: Path) -> None:
    policy, file = TrainedPolicy(fresh_weights(spec_of("CartPole-v1"))), tmp_path / "e.safetensors"
    with pytest.raises(ConfigurationError, match="the expert was trained for CartPole-v1 with"):
        penstock.record_demonstrations(policy, file, "Pendulum-v1")
    with pytest.raises(ConfigurationError, match="samples its actions, and needs no noise"):
        penstock.record_demonstrations(policy, file, "CartPole-v1", noise=0.1)
    assert not file.exists()


def test_an_environment_that_fails_ends_the_recording(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed):
        penstock.record_demonstrations(lambda o: 0, tmp_path / "e.safetensors", "Failing-v0", steps=500)
    assert not list(tmp_path.iterdir())


def test_a_run_whose_file_is_missing_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"sampling.demonstrations: there is no file .*none.safetensors; record"
    ):
        penstock.train("CartPole-v1", run_dir=str(tmp_path / "run"), demonstrations=tmp_path / "none.safetensors")
    assert not (tmp_path / "run").exists()

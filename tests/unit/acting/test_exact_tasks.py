"""The tasks of `exact_tasks`: their best action has exactly the best return, and no other action has it."""

from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.support.environments.exact_tasks import BEST_RETURNS, LONGEST_STACK, STEPS, Convention, Cue

MASKED = ("MaskedChoice-v0", "MaskedLocks-v0")
CONVENTIONS: tuple[Convention, ...] = ("observation", "info", "method")


def play(env: gymnasium.Env[Any, Any], *, best: bool, seed: int | None) -> float:
    """The return of an episode of best actions, or of random ones."""
    task: Any = env.unwrapped
    env.reset(seed=seed)
    total, ended = 0.0, False
    while not ended:
        _, reward, terminated, truncated, _ = env.step(task.best_action() if best else env.action_space.sample())
        total, ended = total + float(reward), terminated or truncated
    return total


@pytest.mark.parametrize("env_id", BEST_RETURNS)
def test_best_actions_have_the_best_return_in_every_episode(env_id: str) -> None:
    env = gymnasium.make(env_id)
    assert [play(env, best=True, seed=seed) for seed in range(50)] == [BEST_RETURNS[env_id]] * 50


@pytest.mark.parametrize("env_id", [env_id for env_id in BEST_RETURNS if env_id not in MASKED])
def test_random_actions_have_less_than_the_best_return(env_id: str) -> None:
    env = gymnasium.make(env_id)
    env.action_space.seed(1)
    returns = [play(env, best=False, seed=seed) for seed in range(200)]
    assert max(returns) <= BEST_RETURNS[env_id]
    assert np.mean(returns) < 0.7 * BEST_RETURNS[env_id]


def test_no_stack_of_frames_distinguishes_the_cues_when_one_is_asked_for() -> None:
    env = gymnasium.make("Cue-v0", cues=4)
    task = env.unwrapped
    assert isinstance(task, Cue)
    last_frames: dict[int, list[list[float]]] = {}
    for seed in range(20):
        observation, _ = env.reset(seed=seed)
        frames, ended = [], False
        while not ended:
            frames.append(observation.tolist())
            observation, _, ended, *_ = env.step(task.best_action())
        last_frames[int(task.best_action())] = frames[-LONGEST_STACK:]
    assert len(last_frames) == 4
    assert all(frames == last_frames[0] for frames in last_frames.values())


def mask_of(env: gymnasium.Env[Any, Any], masks: Convention, observation: Any, info: dict[str, Any]) -> Any:
    if masks == "method":
        return env.get_wrapper_attr("action_masks")()
    return observation["action_mask"] if masks == "observation" else info["action_mask"]


@pytest.mark.parametrize("masks", CONVENTIONS)
@pytest.mark.parametrize("env_id", MASKED)
def test_a_mask_has_a_legal_position_of_each_lock_and_illegal_actions_are_refused(
    env_id: str, masks: Convention
) -> None:
    env = gymnasium.make(env_id, masks=masks)
    sizes = [env.action_space.n] if env_id == "MaskedChoice-v0" else env.action_space.nvec.tolist()  # type: ignore[attr-defined]
    refused = 0
    for seed in range(40):
        observation, info = env.reset(seed=seed)
        assert env.observation_space.contains(observation)
        legal = np.split(np.asarray(mask_of(env, masks, observation, info), np.bool_), np.cumsum(sizes)[:-1])
        assert [len(each) for each in legal] == sizes
        assert all(each.any() for each in legal)
        if not all(each[0] for each in legal):
            refused += 1
            with pytest.raises(ValueError, match="got the illegal action"):
                env.step(np.int64(0) if len(sizes) == 1 else np.zeros(len(sizes), np.int64))
    assert refused > 0


@pytest.mark.parametrize("masks", CONVENTIONS)
def test_the_place_of_the_mask_does_not_change_the_task(masks: Convention) -> None:
    env = gymnasium.make("MaskedLocks-v0", masks=masks)
    assert [play(env, best=True, seed=seed) for seed in range(20)] == [float(STEPS)] * 20

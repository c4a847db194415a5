"""Plays episodes with a policy that does not learn."""

import time
from collections.abc import Callable

import numpy as np

from penstock.acting import randomness
from penstock.acting.environments import Environments
from penstock.acting.inference import PolicyRunner
from penstock.acting.spaces import ActionMap
from penstock.types import EvaluationResult, EvaluationTask

_NOISE_STEPS = 64


def evaluate(
    task: EvaluationTask,
    environments: Environments,
    stopping: Callable[[], bool],
    clock: Callable[[], float] = time.monotonic,
) -> EvaluationResult | None:
    """The returns of the first episode of each environment, all played at once.

    Averaging first episodes, rather than the first so many to end, favours neither short nor long ones. An episode that
    does not end within the task's bounds is cut, and counts with its return until then.

    Args:
        task: Weights, seed, bounds, and whether to take the most likely actions.
        environments: As many as the task has episodes, which take turns in being of its variants.
        stopping: Asked at every step; when true, the evaluation is given up.
        clock: Monotonic seconds.

    Returns:
        The result, or None if it was given up.
    """
    started = clock()
    runner, action_map = PolicyRunner(task.weights), ActionMap(environments.spec.action)
    numbers = np.arange(environments.count, dtype=np.uint32)
    environments.reset(
        randomness.reset_seeds(
            seed=task.seed, incarnation=0, environments=numbers, purpose=randomness.Purpose.EVALUATION
        )
    )
    returns, steps = np.zeros(environments.count), np.zeros(environments.count, np.int64)
    playing = np.ones(environments.count, np.bool_)
    draw = randomness.noise_for(environments.spec.action)
    step, out_of_time = 0, False
    while playing.any() and step < task.max_episode_steps and not out_of_time:
        if stopping():
            return None
        if task.deterministic:
            action = runner.act_greedily(environments.acting_observation)
        else:
            if step % _NOISE_STEPS == 0:
                # The task's seed is a stream of its own; its complement keeps it apart from a run of the same seed.
                noise = draw(
                    seed=~task.seed & 0xFFFFFFFFFFFFFFFF,
                    incarnation=0,
                    environments=numbers,
                    first_step=step,
                    steps=_NOISE_STEPS,
                    size=runner.policy.noise_size,
                )
            action, _ = runner.act(environments.acting_observation, noise[:, step % _NOISE_STEPS])
        outcome = environments.step(action_map(action, squashed=runner.squashes))
        # An environment whose episode has ended is stepped on, and what it pays then, even NaN, is not counted.
        returns += np.where(playing, outcome.reward, 0.0)
        steps += playing
        playing &= ~(outcome.terminated | outcome.truncated)
        step += 1
        out_of_time = clock() - started >= task.max_seconds
    return EvaluationResult(
        id=task.id,
        version=task.weights.version,
        returns=tuple(returns.tolist()),
        steps=tuple(steps.tolist()),
        seconds=clock() - started,
        unfinished=int(playing.sum()),
        out_of_time=out_of_time and bool(playing.any()),
        failure=_refusal(returns),
    )


def _refusal(returns: np.ndarray[tuple[int], np.dtype[np.float64]]) -> str:
    """What is wrong with <float64>[N] returns that nothing can be concluded from; empty if nothing is."""
    for environment, value in enumerate(returns.tolist()):
        if not np.isfinite(value):
            return f"environment {environment} paid rewards that sum up to {value}"
    return ""

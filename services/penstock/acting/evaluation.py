"""Plays episodes with a policy that does not learn."""

import time
from collections.abc import Callable

import numpy as np

from penstock.acting import randomness
from penstock.acting.environments import Environments
from penstock.acting.inference import PolicyRunner
from penstock.acting.spaces import ActionMap
from penstock.types import DiscreteSpace, EvaluationResult, EvaluationTask

_NOISE_STEPS = 64


def evaluate(task: EvaluationTask, environments: Environments, stopping: Callable[[], bool]) -> EvaluationResult | None:
    """The returns of the first episode of each environment, all played at once.

    Averaging first episodes, rather than the first so many to end, favours neither short nor long ones.

    Args:
        task: Weights, seed, and whether to take the most likely actions.
        environments: As many as the task has episodes, which take turns in being of its variants.
        stopping: Asked at every step; when true, the evaluation is given up.

    Returns:
        The result, or None if it was given up.
    """
    started = time.monotonic()
    runner, action_map = PolicyRunner(task.weights), ActionMap(environments.spec.action)
    numbers = np.arange(environments.count, dtype=np.uint32)
    environments.reset(
        randomness.reset_seeds(
            seed=task.seed, incarnation=0, environments=numbers, purpose=randomness.Purpose.EVALUATION
        )
    )
    returns, steps = np.zeros(environments.count), np.zeros(environments.count, np.int64)
    playing = np.ones(environments.count, np.bool_)
    draw = randomness.uniforms if isinstance(environments.spec.action, DiscreteSpace) else randomness.normals
    step = 0
    while playing.any():
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
        returns += outcome.reward * playing
        steps += playing
        playing &= ~(outcome.terminated | outcome.truncated)
        step += 1
    return EvaluationResult(
        id=task.id,
        version=task.weights.version,
        returns=tuple(returns.tolist()),
        steps=tuple(steps.tolist()),
        seconds=time.monotonic() - started,
    )

"""Evaluates a policy by playing episodes, without learning."""

import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.acting.environments.offsets import with_offsets
from penstock.acting.environments.vectors import Environments
from penstock.acting.policies.randomness import Purpose, Streams
from penstock.acting.policies.runners import runner_of
from penstock.acting.values.spaces import ActionMap
from penstock.types.evaluation import EvaluationResult, EvaluationTask, InfoValues

_NOISE_STEPS = 64


def evaluate(
    task: EvaluationTask,
    environments: Environments,
    stopping: Callable[[], bool],
    clock: Callable[[], float] = time.monotonic,
    *,
    module: str | None = None,
    info_metrics: Sequence[str] = (),
) -> EvaluationResult | None:
    """Plays the first episode of every environment, all at once, and returns their returns; None if abandoned.

    The mean over first episodes favours neither short nor long ones, unlike the mean over the first N that end. An
    episode that does not end within the task's bounds is cut, and its return until then counts. There is one
    environment per episode of the task, alternating between its variants. `stopping` is called at every step, and
    abandons the evaluation if it returns True. `clock` returns monotonic seconds. `module` is the only module that may
    be imported. `info_metrics` are the keys of the infos whose values the environments report.

    Raises `ForeignCode` if the task's weights name another one, or `EnvironmentFailed`.
    """
    started = clock()
    runner = runner_of(task.weights, module=module)
    action_map = ActionMap(environments.spec.action, runner.network)
    numbers = np.arange(environments.count, dtype=np.uint32)
    environments.reset(Streams(task.seed, 0, numbers).reset_seeds(Purpose.EVALUATION))
    environments = with_offsets(environments, runner.network)
    # The complement separates these streams from the streams of a run with the same seed.
    streams = Streams(~task.seed & 0xFFFFFFFFFFFFFFFF, 0, numbers)
    returns, steps = np.zeros(environments.count), np.zeros(environments.count, np.int64)
    info = np.full((environments.count, len(info_metrics)), np.nan)
    most_steps = task.max_episode_steps
    if not environments.timed:
        most_steps = min(most_steps, task.untimed_episode_steps)
    playing, begun = np.ones(environments.count, np.bool_), np.ones(environments.count, np.bool_)
    step, out_of_time = 0, False
    while playing.any() and step < most_steps and not out_of_time:
        if stopping():
            return None
        observation, mask = environments.acting_observation, environments.action_mask
        if task.deterministic:
            action = runner.act_greedily(observation, mask=mask, begun=begun)
        else:
            if step % _NOISE_STEPS == 0:
                noise = streams.draw(runner.noise, step, _NOISE_STEPS)
            action, _ = runner.act(observation, noise[:, step % _NOISE_STEPS], mask=mask, begun=begun)
        outcome = environments.step(action_map(action))
        for lost in outcome.lost.values():
            raise lost
        # Environments are still stepped after their episode has ended. Their rewards, even NaN, no longer count.
        returns += np.where(playing, outcome.reward, 0.0)
        steps += playing & outcome.valid
        if outcome.info is not None:
            info[playing] = outcome.info[playing]
        begun = outcome.begun
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
        info=tuple(InfoValues(key, tuple(values)) for key, values in zip(info_metrics, info.T.tolist(), strict=True)),
    )


def _refusal(returns: NDArray[np.float64]) -> str:
    """Returns why <float64>[N] returns can't be used; empty if all are finite."""
    unusable = np.flatnonzero(~np.isfinite(returns))[:1]
    return "".join(f"environment {index} returned rewards whose sum is {returns[index]}" for index in unusable)

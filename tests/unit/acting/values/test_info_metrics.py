"""Numbers of the infos reach episodes and evaluations from all forms of environments, each once."""

import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from penstock.acting.collector import Collector
from penstock.acting.environments.progress import Progress
from penstock.acting.environments.vectors import Environments, device_of
from penstock.acting.evaluation import evaluate
from penstock.acting.policies.runners import runner_of
from penstock.acting.ready_collector import ReadyCollector
from penstock.acting.values.info_metrics import InfoMetrics
from penstock.acting.values.spaces import segment_schema
from penstock.types.evaluation import EvaluationTask
from tests.support.environments import reporting
from tests.support.environments.made import checked, make_environments
from tests.support.environments.reporting import KEYS, LENGTH, values_of
from tests.support.environments.tiny import assignment
from tests.support.training.policies import fresh_weights

COUNT, WINDOW = 3, 17
MODULE = reporting.__name__
FORMS: dict[str, dict[str, Any]] = {
    "sync": {"env_id": "Reporting-v0", "vectorization": "sync"},
    "process": {"env_id": f"{MODULE}:Reporting", "vectorization": "process", "workers": 2},
    "next step": {"env_id": "Reporting-v0", "vectorization": "native"},
    "same step": {"env_id": "ReportingAtOnce-v0", "vectorization": "native"},
    "another Python": {"env_id": f"{MODULE}:Reporting", "vectorization": "sync", "python": sys.executable},
}


def made(form: str, keys: tuple[str, ...] = KEYS, progress: Progress | None = None) -> Environments:
    return make_environments(**FORMS[form], count=COUNT, kwargs={}, info_metrics=keys, progress=progress)


def ends_of(environments: Environments, steps: int) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """Yields the environment and the values of each episode that ends."""
    actions = (np.zeros(COUNT, np.int64),)
    for _ in range(steps):
        outcome = environments.step(actions)
        assert outcome.info is not None
        for index in np.flatnonzero(outcome.terminated | outcome.truncated).tolist():
            yield index, outcome.info[index].copy()


@pytest.mark.parametrize("form", FORMS)
def test_each_episode_has_the_last_number_of_each_key(form: str) -> None:
    progress = Progress()
    with closing(made(form, progress=progress)) as environments:
        environments.reset(range(COUNT))
        found: dict[int, list[NDArray[np.float64]]] = {index: [] for index in range(COUNT)}
        for index, values in ends_of(environments, 4 * (LENGTH + 1)):
            found[index].append(values)
        # A second reset begins again.
        begun = len(found[0]) + (form != "same step")
        environments.reset(range(COUNT))
        again = [values for _, values in ends_of(environments, LENGTH)]
    for episodes in found.values():
        assert len(episodes) >= 4
        first = int(episodes[0][1])
        np.testing.assert_array_equal(episodes, [values_of(first + each) for each in range(len(episodes))])
    assert again and all(values[1] > begun - 1 for values in again)
    told = " | ".join(progress.notices)
    assert len(progress.notices) == 2, told
    assert "info['kind'] is" in told and "info lacked 'absent' in an episode; the keys of its last info: " in told
    assert "last.distance" in told and "_success" not in told and told.count("correct environment.info_metrics") == 2


@pytest.mark.parametrize(("form", "share"), [("sync", 1.0), ("process", 0.5)])
def test_collected_episodes_have_them(form: str, share: float) -> None:
    with closing(made(form)) as environments:
        schema = segment_schema(environments.spec, WINDOW)
        kind: Any = Collector if share == 1.0 else ReadyCollector
        more = {} if share == 1.0 else {"ready_share": share}
        collector = kind(environments, assignment(*range(COUNT)), schema=schema, discount=0.9, **more)
        runner = runner_of(fresh_weights(environments.spec))
        for _ in range(3):
            collector.collect(runner)
        warnings = [collector.take_warning() for _ in range(3)]
    episodes, _ = collector.take_episodes()
    assert len(episodes) >= COUNT * 3 and {each.environment for each in episodes} == {0, 1, 2}
    for each in episodes:
        np.testing.assert_array_equal(each.info, values_of(int(each.info[1])))
    assert "lacked 'absent'" in "".join(warnings[:2]) and not warnings[2]


def test_without_keys_episodes_have_none() -> None:
    with closing(made("sync", ())) as environments:
        environments.reset(range(COUNT))
        assert environments.step((np.zeros(COUNT, np.int64),)).info is None
        schema = segment_schema(environments.spec, WINDOW)
        collector = Collector(environments, assignment(*range(COUNT)), schema=schema, discount=0.9)
        collector.collect(runner_of(fresh_weights(environments.spec)))
    assert {each.info for each in collector.take_episodes()[0]} == {()}


@pytest.mark.parametrize("most_steps", [100, 3])
def test_evaluations_have_the_numbers_of_first_episodes(most_steps: int) -> None:
    with closing(made("sync")) as environments:
        weights = fresh_weights(environments.spec)
        task = EvaluationTask(1, weights, COUNT, deterministic=True, seed=1, max_episode_steps=most_steps)
        result = evaluate(task, environments, lambda: False, info_metrics=KEYS)
    assert result is not None
    found = {each.name: each for each in result.info_metrics}
    assert list(found) == [*KEYS] and found["begun"].episodes == COUNT
    # A cut episode has the numbers until then.
    assert found["success"].missing == (0 if most_steps > LENGTH else COUNT)
    assert found["early"].mean == pytest.approx(0.5 * found["begun"].mean / 10.0)  # type: ignore[operator]
    assert str(found["absent"]) == f"absent - ({COUNT} episodes without it)"


def test_numbers_of_vector_environments_may_be_tensors_columns_or_objects() -> None:
    told: list[str] = []
    reader = InfoMetrics(["a", "b", "c", "d", "e"], 2, told.append)
    both, none = np.ones(2, np.bool_), np.zeros(2, np.bool_)
    infos = {
        "a": torch.tensor([[1.0], [2.0]]),
        "b": np.array([True, None], object),
        "c": np.array([3, 4]),
        "_c": np.array([False, True]),
        "d": np.array([np.inf, 1.0]),
        "e": torch.tensor(0.5),
    }
    found = reader.step(infos, none, both)
    np.testing.assert_array_equal(found, [[1, 1, np.nan, np.nan, np.nan], [2, np.nan, 4, 1, np.nan]])
    assert len(told) == 2 and "inf, which is not finite" in told[0] and "'e'" in told[1]
    assert "not one number for each environment" in told[1]


def test_a_key_with_dots_may_be_literal() -> None:
    reader = InfoMetrics(["TimeLimit.truncated", "a.b.c"], 1, lambda line: None)
    one = np.ones(1, np.bool_)
    found = reader.step([{"TimeLimit.truncated": True, "a": {"b": {"c": 2}}}], one, one)
    assert found.tolist() == [[1.0, 2.0]]
    assert np.isnan(reader.step([{"a": {"b": 3}}], one, ~one)).all()


def test_infos_of_tensors_are_read_on_the_host() -> None:
    pendulum = "tests.support.environments.tensor_pendulum:TensorPendulum"
    for keys, on_device in (((), True), (("success",), False)):
        environments = make_environments(pendulum, 2, kwargs={}, vectorization="native", info_metrics=keys)
        assert (device_of(environments) is not None) == on_device


class Solved(gymnasium.Env[Any, Any]):
    observation_space, action_space = spaces.Box(-1.0, 1.0, (1,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), 1.0, False, False, {"is_success": False}


@pytest.mark.parametrize(("keys", "hinted"), [((), True), (("is_success",), False)])
def test_the_check_of_an_environment_names_a_key_of_success(keys: tuple[str, ...], hinted: bool) -> None:
    found = checked(f"{__name__}:Solved", [{}], instances=1, info_metrics=keys)
    hints = [notice for notice in found.notices if "environment.info_metrics is_success reports its rate" in notice]
    assert bool(hints) == hinted

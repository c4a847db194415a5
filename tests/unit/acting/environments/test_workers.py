"""Environments in worker processes have the rows of those in one process, and survive the loss of workers."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import tests.support.environments.failing
import tests.unit.acting.values.test_values_masks as masked
from penstock.acting.collector import Collector
from penstock.acting.environments.progress import Progress
from penstock.acting.environments.vectors import Environments
from penstock.acting.environments.workers.pool import ProcessEnvironments
from penstock.acting.policies.runners import runner_of
from penstock.acting.values.spaces import ActionMap, segment_schema
from penstock.algo.network import Network
from penstock.errors import ConfigurationError, EnvironmentFailed, UnknownEnvironment
from tests.support.environments.made import make_environments
from tests.support.environments.tiny import assignment, spec_of
from tests.support.machine.timing import NEVER_S, start_patience_s, wait_for
from tests.support.tiers import gate_of
from tests.support.training.policies import fresh_weights

FAILING = tests.support.environments.failing.__name__
SPEC = spec_of("Failing-v0")
ZEROS = (np.zeros(3, np.int64),)


def made(
    env_id: str = "Failing-v0", count: int = 3, workers: int = 2, timeout_s: float = NEVER_S, **kwargs: Any
) -> ProcessEnvironments:
    environments = make_environments(
        env_id,
        count,
        kwargs=kwargs,
        imports=[FAILING],
        vectorization="process",
        workers=workers,
        timeout_s=timeout_s,
        progress=Progress(window_steps=8),
    )
    assert isinstance(environments, ProcessEnvironments)
    return environments


def workers_of(process: int) -> list[psutil.Process]:
    """Returns the workers of a process, in the order of their start."""
    children = psutil.Process(process).children()
    found = [child for child in children if any("environment_worker" in word for word in child.cmdline())]
    return sorted(found, key=lambda child: child.create_time())


def random_action(environments: Environments, generator: np.random.Generator) -> tuple[Any, ...]:
    rows = []
    for leaf in environments.spec.action.spaces:
        dtype, shape = leaf.action_array
        assert dtype == "int64"
        rows.append(generator.integers(0, min(leaf.choices), (environments.count, *shape)))
    return ActionMap(environments.spec.action, Network())(tuple(rows))


@pytest.mark.parametrize(
    ("env_id", "imports", "kwargs"),
    gate_of(
        1,
        [
            ("Courier-v0", ["tests.support.environments.courier"], {}),
            ("CartPole-v1", [], {}),
            ("Masked-v0", [masked.__name__], {"place": "info"}),
        ],
    ),
)
def test_rows_are_those_of_environments_in_one_process(env_id: str, imports: list[str], kwargs: dict[str, str]) -> None:
    generator, seeds, steps = np.random.default_rng(0), [5, 2**61, 7, 8, 9], 0
    single = make_environments(env_id, 5, kwargs=kwargs, imports=imports)
    with closing(
        make_environments(env_id, 5, kwargs=kwargs, imports=imports, vectorization="process", workers=2)
    ) as several:
        assert several.spec == single.spec and several.timed == single.timed
        for environments in (single, several):
            environments.reset(seeds)
        while steps < 200:
            for leaf, other in zip(single.observation, several.observation, strict=True):
                np.testing.assert_array_equal(leaf, other, strict=True)
            if single.action_mask is not None:
                np.testing.assert_array_equal(single.action_mask, several.action_mask, strict=True)
                action: tuple[Any, ...] = (single.action_mask.argmax(1),)
            else:
                action = random_action(single, generator)
            expected, found = single.step(action), several.step(action)
            for one, other in zip(expected[:5], found[:5], strict=True):
                np.testing.assert_array_equal(one, other, strict=True)
            assert not found.lost
            steps += 1
        assert several.progress.steps == single.progress.steps


def test_only_the_episodes_of_a_killed_worker_are_lost() -> None:
    with closing(made(at=-1)) as environments:
        environments.progress.numbers = [40, 41, 42]
        environments.reset([1, 2, 3])
        for _ in range(4):
            environments.step(ZEROS)
        victim = workers_of(os.getpid())[-1]
        victim.kill()
        outcome = environments.step(ZEROS)
        text = "worker 1 (environments 41, 42) was ended by SIGKILL (Failing-v0)"
        assert [index for index, failed in outcome.lost.items() if text in str(failed)] == [1, 2]
        assert outcome.valid.tolist() == [True, False, False]
        assert outcome.truncated.tolist() == outcome.begun.tolist() == [False, True, True]
        assert not outcome.terminated.any() and not outcome.reward.any()
        # The other episode continues.
        assert environments.observation[0][:, 0].tolist() == [0.1, 0.0, 0.0]
        assert not environments.step(ZEROS).lost
        assert environments.observation[0][:, 0].tolist() == [0.12, 0.02, 0.02]
        workers_of(os.getpid())[-1].kill()
        with pytest.raises(EnvironmentFailed, match=r"worker 1 .* was ended by SIGKILL"):
            environments.step(ZEROS)
    assert not workers_of(os.getpid())


@pytest.mark.parametrize(
    ("kind", "text", "environment"),
    gate_of(
        0,
        [
            ("raises", "RuntimeError: simulator lost and not found", 1),
            ("leaves", "worker 1 (environments 1, 2) ended with exit code 7", None),
            ("exits", "SystemExit: no display", 1),
            ("observation nan", "an observation with nan", 1),
            ("closes", "worker 1 (environments 1, 2) ", None),
        ],
    ),
)
def test_the_environments_of_a_worker_that_fails_begin_again(
    tmp_path: Path, kind: str, text: str, environment: int | None
) -> None:
    # The worker of one environment reaches the step first or last; either of them has the fault, once.
    with closing(made(kind=kind, at=5, once=str(tmp_path / "once"))) as environments:
        environments.reset([1, 2, 3])
        lost = [environments.step(ZEROS).lost for _ in range(20)]
    failed = [each for each in lost if each]
    assert len(failed) == 1
    ((index, failure), *_) = failed[0].items()
    if index:
        assert text in failure.what and failure.environment == environment


@pytest.mark.nightly
def test_a_worker_that_hangs_is_replaced(tmp_path: Path) -> None:
    limit_s = start_patience_s()
    with closing(made(count=1, timeout_s=limit_s, kind="hangs", at=3, once=str(tmp_path / "once"))) as environments:
        environments.reset([1])
        lost = [environments.step((np.zeros(1, np.int64),)).lost for _ in range(4)]
    texts = [str(failed) for each in lost for failed in each.values()]
    assert texts == [f"worker 0 (environment 0) has not returned from step for {limit_s:g} s (Failing-v0)"]


@pytest.mark.nightly
def test_the_other_environments_go_on_while_one_is_in_a_step(tmp_path: Path) -> None:
    once, limit_s = str(tmp_path / "once"), start_patience_s()
    with closing(made(workers=3, timeout_s=limit_s, kind="hangs", at=3, once=once)) as environments:
        environments.reset([1, 2, 3])
        answered, steps = np.arange(3), np.zeros(3, np.int64)
        lost: Mapping[int, EnvironmentFailed] = {}
        while not lost:
            environments.send(ZEROS, answered)
            answered, outcome = environments.receive(2)
            lost, steps[answered] = outcome.lost, steps[answered] + 1
        ((slow, failed),) = lost.items()
        assert f"worker {slow} (environment {slow}) has not returned from step for {limit_s:g} s" in str(failed)
        assert steps[slow] == 3 and np.delete(steps, slow).min() > 20
        assert outcome.truncated[slow] and not outcome.valid[slow] and outcome.begun[slow]


def test_a_worker_that_is_killed_in_a_step_has_answered() -> None:
    with closing(made(workers=3, at=-1, pause_s=0.05)) as environments:
        environments.reset([1, 2, 3])
        environments.send(ZEROS, np.arange(3))
        workers_of(os.getpid())[1].kill()
        lost: Mapping[int, EnvironmentFailed] = {}
        while not lost:
            answered, outcome = environments.receive(1)
            lost = outcome.lost
            environments.send(ZEROS, answered)
        assert list(lost) == [1] and "was ended by SIGKILL" in str(lost[1])
        # A reset awaits the steps in progress.
        environments.reset([1, 2, 3])
        assert environments.observation[0][:, 0].tolist() == [0.0] * 3
        assert not environments.step(ZEROS).lost


def test_windows_with_a_lost_episode_are_complete(tmp_path: Path) -> None:
    with closing(made(kind="raises", at=5, once=str(tmp_path / "once"))) as environments:
        schema = segment_schema(environments.spec, 8)
        collector = Collector(environments, assignment(40, 41, 42), schema=schema, discount=0.9)
        columns = collector.collect(runner_of(fresh_weights(environments.spec))).columns
        (loss,) = collector.take_losses()
        episodes, steps = collector.take_episodes()
    valid, truncated = columns.column("valid").astype(bool), columns.column("truncated").astype(bool)
    lost = np.flatnonzero(~valid.all(1)).tolist()
    assert lost in ([0], [1, 2])
    assert not episodes and steps == 24 - len(lost)
    # Row 4 of a lost episode has its last observation, from which the row before it bootstraps.
    for index in range(3):
        rows = [0.0, 0.02, 0.04, 0.06, 0.08]
        rows += [0.0, 0.02, 0.04, 0.06] if index in lost else [0.1, 0.12, 0.14, 0.16]
        assert columns.column("observation")[index, :, 0].tolist() == np.array(rows, np.float32).tolist()
        assert np.flatnonzero(truncated[index]).tolist() == np.flatnonzero(~valid[index]).tolist()
        assert np.flatnonzero(~valid[index]).tolist() == ([4] if index in lost else [])
    assert "simulator lost and not found" in loss.what and loss.environment in (40, 41)


@pytest.mark.parametrize(
    ("env_id", "kwargs", "text"),
    gate_of(
        0,
        [
            ("Once-v0", {}, "can't make the environment 'Once-v0': RuntimeError: can't create multiple emulators"),
            ("Nothing-v0", {}, "Nothing-v0"),
            ("Failing-v0", {"wrong": 1}, "it takes no argument 'wrong'"),
        ],
    ),
)
def test_a_refusal_is_that_of_one_process(env_id: str, kwargs: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        made(env_id, workers=2, **kwargs)
    assert text in str(caught.value)
    assert isinstance(caught.value, UnknownEnvironment) == (env_id == "Nothing-v0")
    assert not workers_of(os.getpid())


@pytest.mark.nightly
def test_an_error_in_close_is_raised_after_all_workers_have_ended() -> None:
    environments = made("Rude-v0", count=2)
    with pytest.raises(EnvironmentFailed, match="can't close"):
        environments.close()
    assert not workers_of(os.getpid())


ACTOR = """
import os, sys, time
from penstock.acting.environments.making import Making
from penstock.acting.environments.vectors import make_environments
imports = ["tests.support.environments.failing"]
environments = make_environments(Making("Failing-v0", {"pause_s": 1e6}, imports, vectorization="process"), 2)
environments.reset([1, 2])
print("ready", flush=True)
environments.step(([0, 0],))
"""


def test_workers_end_with_a_killed_actor_even_in_a_call() -> None:
    with subprocess.Popen([sys.executable, "-c", ACTOR], stdout=subprocess.PIPE) as actor:
        assert actor.stdout is not None and actor.stdout.readline() == b"ready\n"
        workers = workers_of(actor.pid)
        assert len(workers) == 1
        actor.kill()
        actor.wait()
        wait_for(lambda: not any(worker.is_running() for worker in workers), "the end of the workers")


@pytest.mark.nightly
def test_nothing_is_left_of_workers_that_were_killed_at_random_moments() -> None:
    generator, losses, others = random.Random(0), 0, 0
    with closing(made(count=4, workers=2, at=-1, pause_s=0.0005)) as environments:
        environments.progress.window_steps = 1
        environments.reset([1, 2, 3, 4])
        descriptors = psutil.Process().num_fds()
        zeros = (np.zeros(4, np.int64),)
        while losses < 100:
            for _ in range(generator.randrange(1, 10)):
                others += not environments.step(zeros).lost
            victim = generator.choice(workers_of(os.getpid()))
            os.kill(victim.pid, generator.choice([signal.SIGKILL, signal.SIGSEGV]))
            losses += bool(environments.step(zeros).lost)
            assert len(workers_of(os.getpid())) == 2
        assert others
        assert psutil.Process().num_fds() == descriptors
    assert not workers_of(os.getpid())

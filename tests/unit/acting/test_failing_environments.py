import re
import signal
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

import tests.support.environments.failing
from penstock.acting.collector import Collector
from penstock.acting.environments.bounds import ObservationBounds, Precision
from penstock.acting.environments.single_environments import SingleEnvironments
from penstock.acting.environments.vectors import Environments, NextStepEnvironments, SameStepEnvironments
from penstock.acting.policies.inference import PolicyRunner
from penstock.acting.protocols import WindowPolicy
from penstock.acting.values.spaces import describe, segment_schema
from penstock.errors import ConfigurationError, EnvironmentFailed
from tests.support.environments.made import make_environments, variants_of
from tests.support.environments.tiny import assignment, spec_of
from tests.support.training.policies import decided_weights, fresh_weights

ZEROS = (np.zeros(3, np.int64),)
SPEC = spec_of("Failing-v0")
FILE = tests.support.environments.failing.__file__
CORRECT = "correct the environment, or choose another by --env-id"


def failing(kind: str, at: int = 5, count: int = 3, **kwargs: Any) -> Environments:
    # With the expected spec no environment is reset while it is made, so that its first reset is the test's.
    return make_environments("Failing-v0", count, kwargs={"kind": kind, "at": at, **kwargs}, expected=SPEC)


def single(kind: str, at: int = -1) -> SingleEnvironments:
    environments = failing(kind, at)
    assert isinstance(environments, SingleEnvironments)
    return environments


def text_of(failed: EnvironmentFailed) -> str:
    """Returns the message, with N in place of the line's number."""
    return re.sub(r", line \d+\)", ", line N)", str(failed))


def failure_of(environments: Environments, steps: int = 60) -> EnvironmentFailed:
    with pytest.raises(EnvironmentFailed) as caught:
        environments.reset(range(environments.count))
        for _ in range(steps):
            environments.step((np.zeros(environments.count, np.int64),))
    return caught.value


@pytest.fixture
def in_a_service() -> Iterator[None]:
    """Handles SIGINT as a service does, so that only an environment can raise KeyboardInterrupt."""
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("kind", "fault", "remedy"),
    [
        ("raises", f"RuntimeError: simulator lost and not found ({FILE}, line N)", CORRECT),
        (
            "exits",
            f"SystemExit: no display ({FILE}, line N)",
            "an environment must raise an exception",
        ),
        ("interrupts", f"KeyboardInterrupt ({FILE}, line N)", CORRECT),
        ("old", "a tuple of 4 was returned", "step must return observation, reward, terminated, truncated and info"),
        ("nothing", "NoneType None was returned", "step must return observation, reward, terminated, truncated and in"),
        ("reward none", "no reward (None)", "a reward must be one finite number, also in float32"),
        ("reward nan", "a reward of nan", "a reward must be one finite number, also in float32"),
        (
            "reward large",
            "a reward of 1e+300, which float32 can't hold (at most 3.4e+38)",
            "a reward must be one finite",
        ),
        (
            "reward vector",
            "a reward of shape (2,)",
            "a reward must be one finite number, also in float32; add its elem",
        ),
        ("done vector", "terminated as an array of shape (2,)", "it must be True or False"),
        ("info list", "an info that is list [1, 2]", "it must be a dict"),
        ("observation nan", "an observation with nan at [1]", "observations must be finite in float32"),
        (
            "observation large",
            "an observation with 1e+40 at [1], which float32 can't hold (at most 3.4e+38)",
            "observatio",
        ),
        (
            "observation shape",
            "an observation of shape (3,) and type float64, where its space has (2,) and float64",
            "correct observation_space, or what is returned",
        ),
        (
            "observation none",
            "an observation of shape () and type object, where its space has (2,) and float64",
            "correct observation_space, or what is returned",
        ),
    ],
)
@pytest.mark.usefixtures("in_a_service")
def test_a_failure_names_the_environment_the_fault_the_step_and_the_remedy(kind: str, fault: str, remedy: str) -> None:
    failed = failure_of(failing(kind))
    assert failed.environment == 0
    assert text_of(failed).startswith(f"environment 0: {fault} in step 5 of its episode (Failing-v0); {remedy}")
    assert "\n" not in str(failed)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("reset raises", f"RuntimeError: simulator lost at reset ({FILE}, line N) in reset (Failing-v0); {CORRECT}"),
        ("reset old", "an array of shape (2,) was returned in reset (Failing-v0); reset must return observation and"),
    ],
)
def test_a_failure_in_a_reset_names_the_environment_and_the_fault(kind: str, message: str) -> None:
    def make(index: int) -> gymnasium.Env[Any, Any]:
        return gymnasium.make("Failing-v0", kind=kind, at=0 if index == 1 else -1)

    environments = single("raises")
    environments.envs = [make(index) for index in range(3)]
    assert f"environment 1: {message}" in text_of(failure_of(environments))


def test_a_failure_in_a_later_episode_names_the_step_of_that_episode(tmp_path: Any) -> None:
    # Only the first of the three environments to reach step 73 fails.
    failed = failure_of(failing("raises", at=73, once=str(tmp_path / "once")), steps=200)
    assert "in step 23 of its episode" in str(failed)


def test_ctrl_c_is_not_a_failure_of_the_environment() -> None:
    environments = failing("interrupts")
    environments.reset(range(3))
    # A shell starts background jobs with the signal ignored.
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            for _ in range(10):
                environments.step(ZEROS)
    finally:
        signal.signal(signal.SIGINT, former)


def test_large_and_small_values_that_fit_float32_are_accepted() -> None:
    environments = single("raises")
    environments.reset(range(3))
    for value in (3.4e38, -3.4e38, 1e-320, 0.0):
        environments._rows[1] = np.array([value, 1.0])
        environments._observe()
        assert environments.observation[0][1, 0] == value


def vector(kind: str, count: int, mode: AutoresetMode) -> Environments:
    """Returns a native vector environment, whose exceptions contain no environment number."""
    envs = SyncVectorEnv(
        [lambda: gymnasium.make("Failing-v0", kind=kind, at=5)] * count, copy=False, autoreset_mode=mode
    )
    spec = describe("Failing-v0", envs.single_observation_space, envs.single_action_space)
    return (NextStepEnvironments if mode is AutoresetMode.NEXT_STEP else SameStepEnvironments)(envs, spec)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize(
    ("kind", "count", "message"),
    [
        ("raises", 1, f"environment 0: RuntimeError: simulator lost and not found ({FILE}, line N) in step (Failing"),
        ("raises", 2, f"RuntimeError: simulator lost and not found ({FILE}, line N) in step (Failing-v0); {CORRECT}"),
        ("reward nan", 2, "environment 0: a reward of nan in step (Failing-v0); a reward must be one finite number"),
        ("reward large", 2, "environment 0: a reward of 1e+300, which float32 can't hold (at most 3.4e+38) in step"),
        ("observation large", 2, "environment 0: an observation with 1e+40 at [1], which float32 can't hold"),
        ("reset raises", 2, f"RuntimeError: simulator lost at reset ({FILE}, line N) in reset (Failing-v0); {CORRECT}"),
    ],
)
def test_a_failure_of_a_vectorised_form_names_the_environment_if_it_is_known(
    mode: AutoresetMode, kind: str, count: int, message: str
) -> None:
    environments = vector(kind, count, mode)
    if kind.startswith("reset"):
        environments._envs._envs.envs[0].unwrapped._at = 0  # type: ignore[attr-defined]
    assert message in text_of(failure_of(environments))


@pytest.mark.parametrize(("call", "remedy"), [("reset", "reset must return"), ("step", "step must return observation")])
def test_a_vectorised_form_that_returns_another_number_of_values_is_a_failure(call: str, remedy: str) -> None:
    environments = vector("raises", 2, AutoresetMode.NEXT_STEP)
    setattr(environments._envs._envs, call, lambda *args, **kwargs: np.zeros(2))  # type: ignore[attr-defined]
    expected = f"an array of shape (2,) was returned in {call} (Failing-v0); {remedy}"
    assert str(failure_of(environments)).startswith(expected)


def test_failures_of_mixed_variants_name_the_row_among_all_environments() -> None:
    mixed = variants_of("Failing-v0", [{"at": -1}, {"at": 3}]).make_mixed(5)
    assert failure_of(mixed).environment == 1


def test_single_environments_step_like_sync_vector_env() -> None:
    ours = make_environments("CartPole-v1", 4, kwargs={})
    theirs = SyncVectorEnv(
        [lambda: gymnasium.make("CartPole-v1")] * 4, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP
    )
    ours.reset([5, 6, 7, 8])
    observation, _ = theirs.reset(seed=[5, 6, 7, 8])
    generator, valid = np.random.default_rng(0), np.ones(4, np.bool_)
    for _ in range(300):
        (shown,) = ours.observation
        assert np.array_equal(shown, observation)
        assert shown.dtype == observation.dtype
        action = generator.integers(2, size=4)
        outcome = ours.step((action,))
        observation, reward, terminated, truncated, _ = theirs.step(action)
        assert np.array_equal(outcome.reward, reward.astype(np.float32))
        assert np.array_equal(outcome.terminated, terminated)
        assert np.array_equal(outcome.truncated, truncated)
        assert np.array_equal(outcome.valid, valid)
        valid = ~(terminated | truncated)


def test_environments_whose_spaces_differ_each_time_are_refused_in_one_line() -> None:
    made = []

    class Changing(gymnasium.Env[Any, Any]):
        action_space = gymnasium.spaces.Discrete(2)

        def __init__(self) -> None:
            made.append(self)
            self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (len(made),))

    gymnasium.register("Changing-v0", lambda **kwargs: Changing(**kwargs), disable_env_checker=True)
    with pytest.raises(
        ConfigurationError,
        match=r"^two environments Changing-v0 made with the same arguments differ in their observation_space,"
        r" Box[^\n]+ and Box[^\n]+; [^\n]+$",
    ):
        make_environments("Changing-v0", 2, kwargs={})


@pytest.mark.parametrize("error", [RuntimeError("no simulator"), OSError("no licence"), SystemExit("no display")])
def test_any_exception_of_a_constructor_is_refused_in_one_line(error: BaseException) -> None:
    def make(**kwargs: Any) -> gymnasium.Env[Any, Any]:
        raise error

    gymnasium.register(f"Unmakeable{type(error).__name__}-v0", make, disable_env_checker=True)
    with pytest.raises(ConfigurationError, match=f"-v0': {type(error).__name__}: {error}"):
        make_environments(f"Unmakeable{type(error).__name__}-v0", 1, kwargs={})


# The collector


def collector(kind: str = "raises", at: int = 5, **kwargs: Any) -> Collector:
    place = assignment(40, 41, 42)
    return Collector(failing(kind, at, **kwargs), place, schema=segment_schema(SPEC, 8), discount=0.9)


def runner() -> PolicyRunner:
    return PolicyRunner(fresh_weights(SPEC))


def test_a_dropped_window_does_not_affect_later_windows() -> None:
    acting = runner()
    collecting = collector(at=53)
    for _ in range(6):
        collecting.collect(acting)
    assert collecting.take_episodes() == ((), 3 * 48)
    with pytest.raises(EnvironmentFailed, match="environment 40: RuntimeError: simulator lost"):
        collecting.collect(acting)
    # The episodes that ended in the dropped window are not counted either.
    assert collecting.take_episodes() == ((), 0)
    collecting.begin_again(failing("raises", at=-1))
    window = collecting.collect(acting)
    assert window.head.first_sequence == 1 + 6 * 3
    assert window.columns.column("observation")[:, 0, 0].tolist() == [0.0] * 3
    assert collecting.take_episodes() == ((), 24)


def test_after_a_failure_within_an_episode_all_returns_restart_at_zero() -> None:
    acting, collecting = runner(), collector(at=12)
    assert (collecting.collect(acting).columns.column("discounted_return").astype(np.float64)[:, -1] > 0.0).all()
    with pytest.raises(EnvironmentFailed):
        collecting.collect(acting)
    collecting.begin_again(failing("raises", at=-1))
    first = collecting.collect(acting).columns
    rewards, expected = [first.column("reward").astype(np.float32)], np.zeros(3)
    returns = first.column("discounted_return").astype(np.float64)
    for step in range(8):
        expected = 0.9 * expected + rewards[0][:, step]
        np.testing.assert_allclose(returns[:, step], expected, rtol=1e-6)
    rewards.extend(collecting.collect(acting).columns.column("reward").astype(np.float32) for _ in range(6))
    whole = np.concatenate(rewards, axis=1)[:, :50].sum(axis=1).tolist()
    episodes, _ = collecting.take_episodes()
    assert [(episode.episode_return, episode.steps) for episode in episodes] == [(total, 50) for total in whole]


def cartpole(failures: int = 0) -> Collector:
    environments = make_environments("CartPole-v1", 2, kwargs={})
    schema = segment_schema(environments.spec, 8)
    return Collector(environments, assignment(4, 5), schema=schema, discount=0.9, failures=failures)


def test_after_a_failure_neither_seeds_nor_noise_repeat() -> None:
    noises: list[bytes] = []

    class Noted(PolicyRunner):
        def begin(self, noise: NDArray[np.float32]) -> WindowPolicy:
            noises.append(noise.tobytes())
            return super().begin(noise)

    acting = Noted(decided_weights(spec_of("CartPole-v1")))
    collecting, beginnings = cartpole(), []
    for failures in range(4):
        beginnings.append(collecting._environments.observation[0].tobytes())
        if failures:
            assert cartpole(failures)._environments.observation[0].tobytes() == beginnings[-1]
        collecting.collect(acting)
        collecting.begin_again(make_environments("CartPole-v1", 2, kwargs={}))
    assert len(set(beginnings)) == len(set(noises)) == 4


def test_a_failure_in_the_first_reset_is_raised_by_the_constructor() -> None:
    with pytest.raises(EnvironmentFailed, match="environment 40: RuntimeError: simulator lost at reset"):
        collector("reset raises", at=0)


def test_finite_rewards_with_an_infinite_discounted_sum_are_a_failure() -> None:
    collecting = collector(at=-1)
    step = collecting._environments.step

    def generous(action: Any) -> Any:
        outcome = step(action)
        outcome.reward[1] = 3e38
        return outcome

    collecting._environments.step = generous  # type: ignore[method-assign]
    with pytest.raises(EnvironmentFailed, match="environment 41: rewards whose discounted sum is inf"):
        collecting.collect(runner())


def test_observations_far_outside_their_space_are_reported_once() -> None:
    collecting, acting = collector("observation outside", at=12), runner()
    collecting.collect(acting)
    assert collecting.take_warning() == ""
    for _ in range(3):
        collecting.collect(acting)
    message = "environment 40: an observation has 1e+06 in element 0, and its space allows -10 to 10 (Failing-v0)"
    assert collecting.take_warning() == message
    collecting.collect(acting)
    assert collecting.take_warning() == ""


@pytest.mark.parametrize("bound", [-30.0, 30.0])
def test_an_observation_is_far_outside_beyond_the_width_of_its_bounds(bound: float) -> None:
    bounds, columns = ObservationBounds(SPEC), segment_schema(SPEC, 3).empty(3)
    observation = columns.column("observation")
    observation[:] = 0.0
    observation[0, 1, 1] = observation[2, 3, 0] = bound
    assert bounds.find_outside(columns) is None
    observation[2, 3, 0] = 1.01 * bound
    message = f"an observation has {1.01 * bound:g} in element 0, and its space allows -10 to 10"
    assert bounds.find_outside(columns) == (2, message)


def coarse(values: NDArray[Any]) -> str:
    """Returns the warning about observations, [rows, 1] or more, of which a window shows two at a time."""
    shape, dtype = values.shape[1:], values.dtype.type
    spec = describe("Some-v0", gymnasium.spaces.Box(-9e18, 9e18, shape, dtype), gymnasium.spaces.Discrete(2))
    precision = Precision(spec)
    (found,) = [text for rows in np.split(values, len(values) // 2) if (text := precision.find_coarse((rows,)))] or [""]
    return found


WALK = np.random.default_rng(0).normal(0.0, 1.0, (400, 3))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (1e9 + WALK, "element 0 of the observation changed by only 5.46 around 1e+09, where the policy's float32 has"),
        (4e6 + WALK * [1e3, 1.0, 1e3], "element 1 of the observation changed by only"),
        (50.1 + 1e-5 * WALK, "subtract a constant from it"),
        (1.7e9 + np.arange(400)[:, None] * 0.02, "changed by only"),
        ((2**26 + 3 * WALK).astype(np.int64), "changed by only"),
        (-(10**15) + (1e6 * WALK).astype(np.int64), "around 1e+15"),
    ],
)
def test_numbers_that_change_by_few_steps_of_float32_are_reported_once(values: NDArray[Any], said: str) -> None:
    assert said in coarse(values)


@pytest.mark.parametrize(
    "values",
    [
        WALK,
        1e9 * WALK,
        1e-9 * WALK,
        1e4 + WALK,
        np.full((400, 2), 1e9),
        np.full((400, 2), 1e9) * (1.0 + 1e-16 * np.arange(800).reshape(400, 2)),
        1.0 + 1e-9 * WALK,
        (1e8 * WALK).astype(np.int64),
        np.full((400, 1), 2**40, np.int64),
        (1e9 + WALK).astype(np.float32),
        np.zeros((400, 2), np.int64),
    ],
)
def test_other_numbers_are_not_reported_as_coarse(values: NDArray[Any]) -> None:
    assert coarse(values) == ""


def test_the_collector_reports_coarse_observations() -> None:
    def offset(env_id: str) -> Any:
        space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float64)
        return gymnasium.wrappers.TransformObservation(
            gymnasium.make(env_id), lambda seen: seen.astype(float) + 1e9, space
        )

    envs = [offset("CartPole-v1") for _ in range(8)]
    spec = describe("CartPole-v1", envs[0].observation_space, envs[0].action_space)
    collecting = Collector(
        SingleEnvironments(envs, spec), assignment(*range(8)), schema=segment_schema(spec, 8), discount=0.9
    )
    warned = []
    for _ in range(20):
        collecting.collect(PolicyRunner(decided_weights(spec)))
        warned.append(collecting.take_warning())
    (warning,) = filter(None, warned)
    assert re.fullmatch(r"element \d of the observation changed by only .* \(CartPole-v1\)", warning)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1"])
def test_ordinary_environments_cause_no_warning(env_id: str) -> None:
    spec = spec_of(env_id)
    environments, schema = make_environments(env_id, 2, kwargs={}), segment_schema(spec, 128)
    collecting = Collector(environments, assignment(0, 1), schema=schema, discount=0.9)
    for _ in range(3):
        collecting.collect(PolicyRunner(decided_weights(spec)))
    assert collecting.take_warning() == ""


def test_a_number_above_the_largest_magnitude_drops_the_window() -> None:
    environments = make_environments("Pendulum-v1", 2, kwargs={})
    schema, acting = segment_schema(environments.spec, 8), PolicyRunner(decided_weights(environments.spec))
    for largest, what in ((0.5, "environment [01]: a reward of -"), (1e9, "")):
        collecting = Collector(environments, assignment(0, 1), schema=schema, discount=0.9, largest_magnitude=largest)
        if not what:
            collecting.collect(acting)
            continue
        with pytest.raises(EnvironmentFailed, match=rf"{what}.*, above 0.5 in magnitude .environment\.largest"):
            collecting.collect(acting)


def test_progress_names_the_environment_that_is_being_called() -> None:
    place, seen = assignment(40, 41, 42), []
    environments = single("raises")

    class Watching(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            seen.append(environments.progress.now())
            return super().step(action)

    environments.envs[2] = Watching(environments.envs[2])
    collecting = Collector(environments, place, schema=segment_schema(SPEC, 4), discount=0.9)
    collecting.collect(runner())
    assert [(each.doing, each.environment, each.window_step, each.window_steps) for each in seen] == [
        ("step", 42, step, 4) for step in range(4)
    ]
    assert [each.steps for each in seen] == [2, 5, 8, 11]
    assert environments.progress.now().doing == ""

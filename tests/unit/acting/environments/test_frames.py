from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from penstock.acting.collector import Collector
from penstock.acting.environments.frames import with_frames
from penstock.acting.environments.vectors import Environments
from penstock.acting.policies.inference import PolicyRunner
from penstock.acting.values.spaces import segment_schema
from penstock.algo.network import Network
from penstock.algo.policies import Policy
from penstock.errors import ConfigurationError
from penstock.learning.step.batches import to_tensors
from penstock.types.replay import Batch, BatchHead, StoreCounts
from penstock.types.spaces import BoxSpace, Tree
from tests.support.environments.made import make_environments, variants_of
from tests.support.environments.tiny import assignment, same_step_counting
from tests.support.training.policies import weights_of

ROWS = 40
HEIGHT, WIDTH = 37, 41


class NoiseImages(gymnasium.Env[NDArray[np.uint8], np.int64]):
    """An environment with images of noise from its generator, and with episodes of seven steps."""

    def __init__(self, shape: tuple[int, ...] = (HEIGHT, WIDTH)) -> None:
        self.observation_space = Box(0, 255, shape, np.uint8)
        self.action_space = Discrete(3)
        self._step = 0

    def _observe(self) -> NDArray[np.uint8]:
        return self.np_random.integers(0, 256, self.observation_space.shape, np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        self._step += 1
        return self._observe(), 1.0, self._step == 7, False, {}


gymnasium.register("Film-v0", lambda **kwargs: NoiseImages(**kwargs))


class Recording:
    """Environments that record the observations on which the policy acts, row by row."""

    def __init__(self, environments: Environments) -> None:
        self._environments = environments
        self.acted_on: list[NDArray[np.generic]] = []

    def __getattr__(self, name: str) -> Any:
        if name == "acting_observation":
            self.acted_on.append(self._environments.acting_observation[0].copy())
        return getattr(self._environments, name)


def runner_of(environments: Environments) -> PolicyRunner:
    network = Network(hidden_sizes=(16,), trunk="shared", normalise_observations=False)
    return PolicyRunner(weights_of(Policy(environments.spec, network), 0))


def learner_tensors(collector: Collector, runner: PolicyRunner, windows: int) -> tuple[Any, Any]:
    """Returns the learner's observations, [N, rows, ...], and their validity, [N, rows], in consecutive windows."""
    observations, valid = [], []
    for _ in range(windows):
        window = collector.collect(runner)
        count = window.columns.segments
        batch = Batch(
            BatchHead(
                number=0,
                fresh_segments=count,
                keys=np.arange(count, dtype=np.uint64),
                versions=np.zeros(count, np.int64),
                priorities=np.zeros(count),
                probabilities=np.ones(count),
                counts=StoreCounts(),
            ),
            window.columns,
        )
        tensors = to_tensors(batch, torch.device("cpu"))
        observations.append(tensors.observation[0][:, :-1].clone())
        valid.append(tensors.valid.clone())
    return torch.cat(observations, 1).numpy(), torch.cat(valid, 1).numpy()


@pytest.mark.parametrize("unroll_length", [2, 5, 8])
@pytest.mark.parametrize("frames", [1, 2, 4])
def test_the_learner_stacks_the_frames_that_the_policy_acted_on(frames: int, unroll_length: int) -> None:
    environments = Recording(with_frames(make_environments("Film-v0", 3, kwargs={}), frames))
    schema = segment_schema(environments.spec, unroll_length)
    collector = Collector(environments, assignment(0, 1, 2), schema=schema, discount=0.9)
    seen, _ = learner_tensors(collector, runner_of(environments), ROWS // unroll_length)
    acted_on = np.stack(environments.acted_on, axis=1)
    assert seen.shape == (3, ROWS // unroll_length * unroll_length, frames, HEIGHT, WIDTH)
    assert np.array_equal(seen, acted_on)


def test_the_learner_stacks_the_frames_that_the_policy_acted_on_under_same_step_autoreset() -> None:
    environments = Recording(with_frames(same_step_counting(length=3), 3))
    schema = segment_schema(environments.spec, 5)
    collector = Collector(environments, assignment(0), schema=schema, discount=0.9)
    seen, valid = learner_tensors(collector, runner_of(environments), 8)
    acted_on = np.stack(environments.acted_on, axis=1)
    assert 0 < (~valid).sum() < valid.sum()
    assert np.array_equal(seen[valid], acted_on[valid])
    # An invalid row acts on the first frame of the new episode, not on the last frame of the previous one.
    assert (acted_on[~valid].reshape(-1, 3, 2)[:, :, 1] == 0).all()


def test_a_stack_contains_frames_of_one_episode_only() -> None:
    environments = with_frames(make_environments("Counting-v0", 2, kwargs={"length": 3}), 3)
    environments.reset([0, 1])
    seen = set()
    for _ in range(12):
        episodes = environments.acting_observation[0].reshape(2, 3, 2)[:, :, 0]
        seen |= {tuple(row) for row in episodes.tolist()}
        environments.step((np.zeros(2, np.int64),))
    assert seen == {(0.0,) * 3, (1.0,) * 3, (2.0,) * 3}


def test_an_episodes_first_frame_fills_the_stack() -> None:
    environments = with_frames(make_environments("Counting-v0", 1, kwargs={"length": 3}), 3)
    environments.reset([0])
    steps = []
    for _ in range(5):
        steps.append(environments.acting_observation[0].reshape(3, 2)[:, 1].tolist())
        environments.step((np.zeros(1, np.int64),))
    assert steps == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3], [0, 0, 0]]


def test_a_segment_stores_each_frame_once() -> None:
    environments = with_frames(make_environments("Film-v0", 2, kwargs={}), 4)
    schema = segment_schema(environments.spec, 16)
    assert schema.columns[schema.index("observation")].segment_shape(16) == (3 + 16 + 1, 1, HEIGHT, WIDTH)


@pytest.mark.parametrize(
    ("shape", "shown"),
    [
        ((HEIGHT, WIDTH), (4, HEIGHT, WIDTH)),
        ((HEIGHT, WIDTH, 3), (12, HEIGHT, WIDTH)),
        ((3, HEIGHT, WIDTH), (12, HEIGHT, WIDTH)),
    ],
)
def test_images_are_converted_to_channels_first(shape: tuple[int, ...], shown: tuple[int, ...]) -> None:
    raw = make_environments("Film-v0", 2, kwargs={"shape": shape})
    environments = with_frames(raw, 4)
    (space,) = environments.spec.observation.spaces
    assert isinstance(space, BoxSpace)
    assert space.shape == shown
    environments.reset([0, 1])
    environments.step((np.zeros(2, np.int64),))
    newest, pixels = environments.acting_observation[0][:, -shown[0] // 4 :], raw.observation[0]
    if len(shape) == 2:
        assert np.array_equal(newest[:, 0], pixels)
    else:
        assert np.array_equal(newest, np.moveaxis(pixels, 3, 1) if shape[2] == 3 else pixels)


def test_flat_observations_are_wrapped_only_to_be_stacked() -> None:
    environments = make_environments("Counting-v0", 2, kwargs={})
    assert with_frames(environments, 1) is environments
    stacked = with_frames(environments, 3)
    assert stacked.spec.observation == Tree.of(BoxSpace("float32", (6,), (0.0,) * 6, (float("inf"),) * 6))


def test_the_frames_of_each_variant_are_stacked_separately() -> None:
    environments = variants_of("Counting-v0", [{"length": 2}, {"length": 3}], frames=2).make_mixed(3)
    environments.reset([0, 1, 2])
    for _ in range(3):
        environments.step((np.zeros(3, np.int64),))
    assert environments.acting_observation[0].tolist() == [[1, 0, 1, 0], [0, 2, 0, 3], [1, 0, 1, 0]]


@pytest.mark.parametrize(
    ("frames", "ages"),
    [
        (2, [[0, 1, 1, 0, 1, 1, 0], [0, 1, 1, 1, 0, 1, 1], [0, 1, 1, 0, 1, 1, 0]]),
        (4, [[0, 1, 2, 0, 1, 2, 0], [0, 1, 2, 3, 0, 1, 2], [0, 1, 2, 0, 1, 2, 0]]),
    ],
)
def test_the_frame_ages_of_each_variant_are_recorded_separately(frames: int, ages: list[list[int]]) -> None:
    variants = variants_of("Counting-v0", [{"length": 2}, {"length": 3}], frames=frames)
    environments = variants.make_mixed(3)
    schema = segment_schema(environments.spec, 6)
    collector = Collector(environments, assignment(0, 1, 2), schema=schema, discount=0.9)
    window = collector.collect(runner_of(environments))
    assert window.columns.column("frame_age").tolist() == ages


@pytest.mark.parametrize("frames", [0, 65])
def test_a_number_of_frames_out_of_range_is_refused(frames: int) -> None:
    with pytest.raises(ConfigurationError, match="between 1 and 64"):
        with_frames(make_environments("Counting-v0", 1, kwargs={}), frames)

"""A run with degree 0 and without replay has the parameters of textbook PPO, bit for bit.

It trains in one process and, in `make test-all`, with all services over gRPC.
"""

import ast
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from penstock.acting.policies.randomness import Streams
from penstock.algo.network import Noise, NoiseKind
from penstock.algo.parameters import flatten
from penstock.cli.options import parse
from penstock.config import Config, build, load_toml
from penstock.learning.durable import checkpoints
from penstock.presets import preset
from penstock.runs.folder import RunFolder
from tests.exactness import textbook_ppo
from tests.exactness.textbook_ppo import Settings, TextbookPPO
from tests.support.environments import courier, exact_tasks
from tests.support.services.processes import WITH_HELPERS, Command, end_of
from tests.support.tiers import gate_of
from tests.support.training import single_process as study

pytestmark = pytest.mark.exactness

ENVIRONMENTS = 16
ITERATIONS = 20
"""Of a run with all services. Each environment takes 640 steps, so episodes of Pendulum, which have
200, are truncated three times."""

ITERATIONS_IN_ONE_PROCESS = 8
"""Each environment takes 256 steps, so an episode of Pendulum is truncated."""

PARAMETERS = ("memory.", "actor.", "critic.", "log_std")

BURN_IN = ("--ppo.burn-in-steps=8", "--ppo.clip-anchor=1", "--ppo.v-trace=false")
"""Options of burn-in in textbook PPO, whose ratio is to the policy that acted. After a burn-in, the policy in training
begins a segment in a newer state than that one did, and Penstock's defaults correct for the difference."""

IMPORTS = f"--env-import={courier.__name__},{exact_tasks.__name__}"


@dataclass(frozen=True, slots=True)
class Trained:
    """Result of a run."""

    config: Config
    iterations: int
    tensors: dict[str, np.ndarray]


Train = Callable[..., Trained]


@pytest.fixture(scope="module", params=["one process", pytest.param("services", marks=pytest.mark.nightly)])
def train(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Returns a function that trains once for each set of arguments: in this process, or with all services."""
    run = {"one process": in_one_process, "services": with_services}[request.param]
    return functools.cache(lambda *arguments: run(tmp_path_factory.mktemp("run") / "run", *arguments))


@pytest.fixture(scope="module")
def train_with_services(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Returns a function that trains with all services once for each set of arguments."""
    return functools.cache(lambda *arguments: with_services(tmp_path_factory.mktemp("run") / "run", *arguments))


def options_of(folder: Path, iterations: int, env_id: str, actors: int, *options: str) -> list[str]:
    """Returns the options of a run with the preset textbook in this folder."""
    return [
        "--preset=textbook",
        f"--run-dir={folder}",
        f"--env-id={env_id}",
        IMPORTS,
        "--seed=11",
        f"--actors={actors}",
        f"--envs-per-actor={ENVIRONMENTS // actors}",
        "--actor.unroll-length=32",
        f"--total-steps={ENVIRONMENTS * 32 * iterations}",
        "--ppo.epochs=4",
        "--evaluation.episodes=1",
        "--evaluation.interval-steps=1000000",
        *options,
    ]


def with_services(folder: Path, *arguments: Any) -> Trained:
    with Command("train", *options_of(folder, ITERATIONS, *arguments), environment=WITH_HELPERS) as command:
        ended = end_of(command)
    assert ended.code == 0, ended.stdout + ended.stderr
    return trained_in(folder, build(load_toml(RunFolder(folder).config)), ITERATIONS)


def in_one_process(folder: Path, env_id: str, actors: int, *options: str) -> Trained:
    given = options_of(folder, ITERATIONS_IN_ONE_PROCESS, env_id, actors, *options)
    config = parse("penstock train", "", given, trains=True).config
    study.train(config, folder=folder, actors=actors)
    return trained_in(folder, config, ITERATIONS_IN_ONE_PROCESS)


def trained_in(folder: Path, config: Config, iterations: int) -> Trained:
    """Returns the result of a run of at least so many iterations."""
    newest = checkpoints.newest(RunFolder(folder))
    assert newest is not None
    version = checkpoints.read_progress(newest).version
    assert version >= iterations
    return Trained(config, version, load_file(newest))


def textbook(config: Config, iterations: int) -> TextbookPPO:
    settings = Settings(
        env_id=config.environment.id,
        env_kwargs=config.environment.kwargs,
        environments=ENVIRONMENTS,
        steps=config.actor.unroll_length,
        seed=config.run.seed,
        hidden_sizes=config.policy.hidden_sizes,
        activation=config.policy.activation,
        memory=config.policy.memory,
        memory_size=config.policy.memory_size,
        burn_in=config.ppo.burn_in_steps,
        normalise_observations=config.policy.normalise_observations,
        normalise_returns=config.policy.normalise_returns,
        learning_rate=config.ppo.learning_rate,
        epochs=config.ppo.epochs,
        minibatches=config.ppo.minibatches,
        gamma=config.ppo.discount,
        gae_lambda=config.ppo.trace_decay,
        clip_range=config.ppo.clip_range,
        value_coefficient=config.ppo.value_coefficient,
        entropy_coefficient=config.ppo.entropy_coefficient,
        max_gradient_norm=config.ppo.max_gradient_norm,
    )
    numbers = np.arange(ENVIRONMENTS, dtype=np.uint32)
    streams = Streams(config.run.seed, 1, numbers)
    space = gymnasium.make(settings.env_id, **settings.env_kwargs).action_space
    kind = NoiseKind.UNIFORM if isinstance(space, gymnasium.spaces.Discrete) else NoiseKind.NORMAL

    def noise(first_step: int) -> np.ndarray:
        return streams.draw((Noise(kind, 1),), first_step, settings.steps)

    learner = TextbookPPO(settings, streams.reset_seeds(), noise, flatten)
    learner.train(iterations)
    return learner


def test_the_textbook_imports_nothing_of_penstock() -> None:
    tree = ast.parse(Path(textbook_ppo.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    roots = {
        name.split(".")[0]
        for node in imports
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names])
    }
    assert roots & {"torch", "gymnasium"} and not roots & {"penstock", "tests"}


@pytest.fixture
def threads_of_a_learner() -> Iterator[None]:
    """Sets the number of threads to that of a run's learner, because the rounding of large sums depends on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(Config().learner.threads)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("env_id", "spread", "options"),
    gate_of(
        5,
        [
            ("CartPole-v1", (1, 4), ()),
            ("CartPole-v1", (2,), ("--policy.normalise-observations=true", "--policy.normalise-returns=true")),
            ("Pendulum-v1", (4,), ("--policy.normalise-observations=true", "--policy.activation=tanh")),
            ("MaskedChoice-v0", (1, 2, 4), ("--ppo.entropy-coefficient=0.01",)),
            ("Courier-v0", (1, 2, 4), ("--environment.kwargs=masks=False",)),
            ("CartPole-v1", (1, 2, 4), ("--policy.memory=gru", "--ppo.minibatches=2")),
            (
                "Courier-v0",
                (1, 2, 4),
                ("--policy.memory=gru", "--ppo.minibatches=2", "--ppo.entropy-coefficient=0.01", *BURN_IN),
            ),
            ("Pendulum-v1", (2,), ("--policy.memory=lstm", "--ppo.minibatches=2", *BURN_IN)),
            ("Pendulum-v1", (1,), ()),
        ],
    ),
)
def test_a_synchronous_run_is_textbook_ppo(
    train: Train, threads_of_a_learner: None, env_id: str, spread: tuple[int, ...], options: tuple[str, ...]
) -> None:
    runs = {actors: train(env_id, actors, *options) for actors in spread}
    first = runs[spread[0]]
    learner = textbook(first.config, first.iterations)
    parameters = {name: tensor.detach().numpy() for name, tensor in learner.model.named_parameters()}
    for actors, trained in runs.items():
        assert trained.iterations == first.iterations
        names = sorted(name for name in trained.tensors if name.startswith(PARAMETERS))
        # Penstock numbers the layers differently after the concatenation of a Dict's leaves.
        for name, expected in zip(names, sorted(parameters), strict=True):
            np.testing.assert_array_equal(
                trained.tensors[name], parameters[expected], err_msg=f"{actors} actors: {name}"
            )
    if learner.observations.count:
        np.testing.assert_array_equal(first.tensors["observation_moments.mean"], learner.observations.mean.numpy())
        np.testing.assert_array_equal(
            first.tensors["observation_moments.variance"], learner.observations.variance.numpy()
        )
    if first.config.policy.normalise_returns:
        np.testing.assert_array_equal(first.tensors["return_moments.variance"], learner.returns.variance.numpy())


@pytest.mark.nightly
def test_policies_in_numpy_train_alike_with_any_number_of_actors_and_in_one_process(
    train_with_services: Train, tmp_path: Path, threads_of_a_learner: None
) -> None:
    services, one_actor = (train_with_services("CartPole-v1", actors, "--actor.inference=auto") for actors in (4, 1))
    assert services.config.actor.inference == "auto"
    for name, tensor in one_actor.tensors.items():
        np.testing.assert_array_equal(tensor, services.tensors[name], err_msg=name)
    actor = services.config.actor.model_copy(update={"environments": ENVIRONMENTS})
    study.train(services.config.model_copy(update={"actor": actor}), folder=tmp_path / "study")
    newest = checkpoints.newest(RunFolder(tmp_path / "study"))
    assert newest is not None
    assert checkpoints.read_progress(newest).version == services.iterations
    for name, tensor in load_file(newest).items():
        np.testing.assert_array_equal(tensor, services.tensors[name], err_msg=name)


@pytest.mark.parametrize(
    ("n_envs", "n_steps", "batch_size", "n_epochs", "total_timesteps"),
    [(2, 64, 16, 3, 512), (4, 50, 64, 2, 500), (1, 128, 64, 10, 128)],
)
def test_the_preset_makes_the_updates_of_a_synchronous_library_for_its_sizes(
    n_envs: int, n_steps: int, batch_size: int, n_epochs: int, total_timesteps: int
) -> None:
    # Without ends of episodes, every row of a rollout is a step. The numbers are those of Stable-Baselines3.
    config = preset(
        "textbook",
        env="Pendulum-v1",
        env_kwargs={"max_episode_steps": 10**6},
        evaluation={"max_episode_steps": 4, "episodes": 1},
        n_envs=n_envs,
        n_steps=n_steps,
        batch_size=batch_size,
        n_epochs=n_epochs,
        total_timesteps=total_timesteps,
    )
    outcome = study.train(config, actors=config.train.least_actors)
    rollout = n_envs * n_steps
    assert outcome.updates == math.ceil(total_timesteps / rollout) * n_epochs * math.ceil(rollout / batch_size)

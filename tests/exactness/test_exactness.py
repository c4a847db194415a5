"""A run with degree 0 has the parameters of the algorithm in one file, bit for bit; without replay, of textbook PPO.

It trains in one process and, in `make test-all`, with all services over gRPC.
"""

import ast
import dataclasses
import functools
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete
from safetensors.numpy import load_file

from examples import penstock_in_one_file as one_file
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

REPLAY = ("--sampling.fresh-fraction=0.25", "--ppo.learning-rate-schedule=linear", "--ppo.target-kl=0.02")
"""The defaults, in place of the preset's values. With one actor, because rows of the store, and so draws, follow the
order in which windows arrive."""

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


@dataclass(frozen=True, slots=True)
class Expected:
    """Result of a reference: its parameters by name, and its normalisers."""

    parameters: dict[str, torch.Tensor]
    observations: one_file.Moments
    returns: one_file.Moments


def reference(config: Config, iterations: int) -> Expected:
    """Returns the result of the algorithm in one file or, for what that lacks, of textbook PPO."""
    environment = gymnasium.make(config.environment.id, **config.environment.kwargs)
    if config.environment.id == "CartPole-v1" and config.policy.memory is None:
        run = algorithm_in_one_file(config)
        assert run.version == iterations
        return Expected(dict(run.policy.named_parameters()), run.policy.observations, run.policy.returns)
    assert config.sampling.fresh_fraction == 1.0
    learner = textbook(config, iterations, discrete=isinstance(environment.action_space, Discrete))
    return Expected(dict(learner.model.named_parameters()), learner.observations, learner.returns)


def algorithm_in_one_file(config: Config) -> one_file.Run:
    sections = (config.run, config.actor, config.sampling, config.ppo, config.policy)
    names = {field.name for field in dataclasses.fields(one_file.Settings)}
    values = {name: getattr(section, name) for name in names for section in sections if hasattr(section, name)}
    ppo = config.ppo
    settings = one_file.Settings(
        **values
        | {
            "env_id": config.environment.id,
            "environments": ENVIRONMENTS,
            "beta": (config.sampling.beta, config.sampling.final_beta),
            "target_kl": math.inf if ppo.target_kl is None else ppo.target_kl,
        }
    )
    streams, noise = randomness(config, NoiseKind.UNIFORM)
    run = one_file.Run(settings, streams.reset_seeds(), noise)
    run.train()
    return run


def randomness(config: Config, kind: NoiseKind) -> tuple[Streams, textbook_ppo.Noise]:
    """Returns the streams of a run's environments, and the noise of their actions."""
    streams = Streams(config.run.seed, 1, np.arange(ENVIRONMENTS, dtype=np.uint32))
    return streams, lambda first: streams.draw((Noise(kind, 1),), first, config.actor.unroll_length)


def textbook(config: Config, iterations: int, *, discrete: bool) -> TextbookPPO:
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
    streams, noise = randomness(config, NoiseKind.UNIFORM if discrete else NoiseKind.NORMAL)
    learner = TextbookPPO(settings, streams.reset_seeds(), noise, flatten)
    learner.train(iterations)
    return learner


@pytest.mark.parametrize("module", [textbook_ppo, one_file])
def test_a_reference_imports_nothing_of_penstock(module: ModuleType) -> None:
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text())
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
        6,
        [
            ("CartPole-v1", (1, 4), ()),
            ("CartPole-v1", (2,), ("--policy.normalise-observations=true", "--policy.normalise-returns=true")),
            ("Pendulum-v1", (4,), ("--policy.normalise-observations=true", "--policy.activation=tanh")),
            ("MaskedChoice-v0", (1, 2, 4), ("--ppo.entropy-coefficient=0.01",)),
            ("Courier-v0", (1, 2, 4), ("--environment.kwargs=masks=False",)),
            ("CartPole-v1", (1, 2, 4), ("--policy.memory=gru", "--ppo.minibatches=2")),
            ("CartPole-v1", (1,), REPLAY),
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
def test_a_synchronous_run_is_its_reference(
    train: Train, threads_of_a_learner: None, env_id: str, spread: tuple[int, ...], options: tuple[str, ...]
) -> None:
    runs = {actors: train(env_id, actors, *options) for actors in spread}
    first = runs[spread[0]]
    expected = reference(first.config, first.iterations)
    parameters = {name: tensor.detach().numpy() for name, tensor in expected.parameters.items()}
    for actors, trained in runs.items():
        assert trained.iterations == first.iterations
        names = sorted(name for name in trained.tensors if name.startswith(PARAMETERS))
        # Penstock numbers the layers differently after the concatenation of a Dict's leaves.
        for name, own in zip(names, sorted(parameters), strict=True):
            np.testing.assert_array_equal(trained.tensors[name], parameters[own], err_msg=f"{actors} actors: {name}")
    if expected.observations.count:
        np.testing.assert_array_equal(first.tensors["observation_moments.mean"], expected.observations.mean.numpy())
        np.testing.assert_array_equal(
            first.tensors["observation_moments.variance"], expected.observations.variance.numpy()
        )
    if first.config.policy.normalise_returns:
        np.testing.assert_array_equal(first.tensors["return_moments.variance"], expected.returns.variance.numpy())


@pytest.mark.nightly
def test_a_run_of_any_degree_is_the_algorithm_in_one_file(threads_of_a_learner: None, tmp_path: Path) -> None:
    options = (*REPLAY, "--sampling.off-policy-degree=2")
    config = parse(
        "penstock train", "", options_of(tmp_path / "run", 12, "CartPole-v1", 1, *options), trains=True
    ).config
    study.train(config, lag=2, folder=tmp_path / "run")
    run = algorithm_in_one_file(config)
    trained = trained_in(tmp_path / "run", config, run.version)
    assert trained.iterations == run.version
    for name, parameter in run.policy.named_parameters():
        np.testing.assert_array_equal(trained.tensors[name], parameter.detach().numpy(), err_msg=name)


def test_the_settings_of_the_one_file_are_those_of_its_preset() -> None:
    defaults, config = dataclasses.asdict(one_file.Settings()), preset("cartpole")
    sections = (config.sampling, config.ppo, config.policy)
    shared = [(name, getattr(each, name)) for name in defaults for each in sections if hasattr(each, name)]
    assert config.ppo.value_clip_range is None
    own = {"off_policy_degree": 0, "beta": (0.4, 1.0)}
    assert len(shared) > 20 and {name: value for name, value in defaults.items() if name in dict(shared)} == {
        **dict(shared),
        **own,
    }


@torch.no_grad()
def likeliest_return(run: one_file.Run, episodes: int) -> float:
    """Returns the mean return of episodes with the likeliest actions, in environments that have other seeds."""
    env, total = gymnasium.make(run.settings.env_id), 0.0
    for seed in range(episodes):
        (observation, _), ended = env.reset(seed=1_000_000 + seed), False
        while not ended:
            log_probs, _ = run.policy(torch.tensor(observation, dtype=torch.float32))
            observation, reward, terminated, truncated, _ = env.step(int(log_probs.argmax()) + run.policy.start)
            total, ended = total + float(reward), terminated or truncated
    return total / episodes


@pytest.mark.nightly
def test_the_one_file_learns_cartpole_with_old_data() -> None:
    run = one_file.Run(one_file.Settings(off_policy_degree=4))
    run.train()
    assert likeliest_return(run, 20) >= 475.0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--degree=65"], "--degree must be from 0 to 64"),
        (["--steps=0"], "--steps above 0"),
        (["--env-id=Pendulum-v1"], "use penstock train"),
        (["--env-id=Nothing-v0"], "Nothing"),
    ],
)
def test_the_one_file_refuses_what_it_can_not_train_in_one_line(options: list[str], reason: str) -> None:
    ended = subprocess.run([sys.executable, one_file.__file__, *options], capture_output=True, text=True, check=False)
    assert ended.returncode == 2 and not ended.stdout
    (line,) = ended.stderr.splitlines()
    assert reason in line


@pytest.mark.nightly
@pytest.mark.parametrize("env_id", ["CartPole-v1", "MaskedChoice-v0"])
def test_worker_processes_change_no_bit(train_with_services: Train, threads_of_a_learner: None, env_id: str) -> None:
    workers = ("--environment.vectorization=process", "--environment.workers=3")
    expected, found = (train_with_services(env_id, 2, *options) for options in ((), workers))
    assert found.config.environment.vectorization == "process" and expected.tensors
    for name, tensor in expected.tensors.items():
        np.testing.assert_array_equal(tensor, found.tensors[name], err_msg=name)


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

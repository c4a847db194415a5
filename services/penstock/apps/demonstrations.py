"""Records demonstrations of an expert in the configured environment, for `penstock.record_demonstrations`."""

from collections.abc import Callable
from contextlib import closing

from penstock.acting.demonstrating import WatchedEnvironment, record
from penstock.acting.environments.vectors import device_of
from penstock.acting.policies.experts import Expert, ExpertRunner
from penstock.acting.policies.runners import runner_of
from penstock.acting.policies.trained import TrainedPolicy
from penstock.acting.protocols import Runner
from penstock.algo.network import Network
from penstock.apps.environments import variants_of
from penstock.config import Config
from penstock.errors import ConfigurationError
from penstock.types.demonstrations import Demonstrations
from penstock.types.differences import contrast, same_spaces
from penstock.types.run import Episode, Weights


def demonstrated(
    config: Config,
    expert: Expert | TrainedPolicy,
    *,
    steps: int,
    noise: float,
    show: Callable[[int], None] = lambda taken: None,
) -> tuple[Demonstrations, tuple[Episode, ...], int]:
    """Records an expert for at least this many steps in one environment of the first variant.

    `show` is called with the steps taken so far.

    Returns:
        The demonstrations, the episodes that ended, and the number of actions that were clipped to their bounds.

    Raises:
        ConfigurationError: The environment can't be made or recorded, the expert does not fit it, or it failed.
        EnvironmentFailed: The environment failed.
    """
    made = variants_of(config.environment, config.environment.variant_kwargs[:1]).make_mixed(1)
    with closing(WatchedEnvironment(made)) as environment:
        if device_of(made) is not None:
            raise ConfigurationError(
                f"{made.spec.id} returns tensors, whose demonstrations can't be recorded; make it return NumPy arrays"
            )
        runner = _runner_of(expert, config, environment, noise)
        found, episodes = record(
            environment,
            runner,
            steps=steps,
            seed=config.run.seed,
            discount=config.ppo.discount,
            largest_magnitude=config.environment.largest_magnitude,
            show=show,
        )
    return found, episodes, runner.clipped if isinstance(runner, ExpertRunner) else 0


def _runner_of(expert: Expert | TrainedPolicy, config: Config, environment: WatchedEnvironment, noise: float) -> Runner:
    spec = environment.spec
    if not isinstance(expert, TrainedPolicy):
        network = Network(squash_actions=config.policy.squash_actions, widest_range=config.policy.widest_range)
        return ExpertRunner(expert, spec, network, noise, lambda: environment.resets)
    if noise:
        raise ConfigurationError("a trained policy samples its actions, and needs no noise; leave out noise")
    policy = expert.policy
    if not same_spaces(policy.spec, spec):
        then, now = contrast(policy.spec, spec)
        raise ConfigurationError(f"the expert was trained for {then}, and the environment is {now}")
    if any(policy.network.observation_offsets):
        raise ConfigurationError(
            f"the expert was trained with policy.observation_offsets, which demonstrations of {spec.id} can't have"
        )
    # As the policy is now, whose parameters its owner may have changed.
    return runner_of(Weights.of(expert.version, expert.to_file()), module=policy.network.module)

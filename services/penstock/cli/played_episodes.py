"""Plays episodes for `penstock evaluate`: prints their returns, and films or shows one on request."""

import argparse
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from penstock.acting.environments.registry import has_native_form
from penstock.acting.evaluation import evaluate
from penstock.acting.policies.runners import runner_of
from penstock.acting.policies.saved_policies import SavedPolicy, read_policy
from penstock.apps.environments import make_played, variants_of
from penstock.cli.film import check_film, film
from penstock.cli.named import note_removed_settings
from penstock.config import Config, EnvironmentConfig, read_settings
from penstock.config.foreign_code import FileNames
from penstock.config.recorded import ENVIRONMENT
from penstock.config.sections import Sections
from penstock.errors import ConfigurationError, EnvironmentFailed
from penstock.machine.module_imports import import_modules, loading
from penstock.process.environment_process import arguments_for, seed_generators
from penstock.runs.folder import RunFolder, find_checkpoint
from penstock.runs.metrics import return_text
from penstock.types.differences import same_spaces
from penstock.types.evaluation import EvaluationResult, EvaluationTask, VariantReturns
from penstock.types.spaces import EnvironmentSpec


def play(named: argparse.Namespace) -> None:
    """Plays the episodes that these options of `penstock evaluate` name."""
    path = find_checkpoint(named.run)
    with arguments_for(named.env_id or ""):
        policy = read_policy(path, module=named.module, trust_code=named.trust_code)
        # Faults of the file are found before the environment is made.
        with policy.errors_named():
            runner_of(policy.weights, module=policy.network.module)
        config = _config_of(path, named)
    with arguments_for(config.environment.id):
        _play(named, path, policy, config)


def _play(named: argparse.Namespace, path: Path, policy: SavedPolicy, config: Sections) -> None:
    environment, max_steps = config.environment, config.evaluation.most_episode_steps
    variants = _chosen_variants(config, named.variant)
    if 0 < named.episodes < len(variants):
        raise ConfigurationError(
            f"{named.episodes} episodes can't be spread over the run's {len(variants)} environment variants; raise"
            " --episodes, or choose one variant with --variant"
        )
    kwargs = [environment.variant_kwargs[variant] for variant in variants]
    seed = config.run.seed if named.seed is None else named.seed
    task = EvaluationTask(
        0, policy.weights, named.episodes, not named.stochastic, seed, len(variants), max_episode_steps=max_steps
    )
    if named.record_video:
        check_film(policy, environment, kwargs[0])
    seed_generators(seed, "evaluation")
    with closing(variants_of(environment, kwargs).make_mixed(max(1, named.episodes))) as environments:
        _check_same_spaces(path, policy, environments.spec)
        if named.episodes:
            result = evaluate(task, environments, lambda: False, module=policy.network.module)
            assert result is not None
            _print(result, task, path, environment, variants)
    if named.human:
        _show(policy, environment, variants[0], seed)
    if named.record_video:
        root = path.parent.parent if path.parent.name == "checkpoints" else path.parent
        print("filming one episode", flush=True)
        videos = RunFolder(root).videos
        print(film(policy, environment, kwargs[0], folder=videos, seed=seed, output=named.output))


def _print(
    result: EvaluationResult, task: EvaluationTask, path: Path, environment: EnvironmentConfig, variants: Sequence[int]
) -> None:
    """Prints the returns of the episodes."""
    print(f"{environment.id}, version {result.version} of {path}, seed {task.seed}")
    print(f"return {_spread(result)} over {task.episodes} episodes")
    lowest, highest, length = min(result.returns), max(result.returns), sum(result.steps) / task.episodes
    print(f"from {return_text(lowest)} to {return_text(highest)}, mean length {length:.0f} steps")
    if result.unfinished:
        bound = f"{task.max_episode_steps:,} steps"
        print(f"{result.unfinished} episodes did not end within {bound}; their returns so far are counted")
    if environment.variants:
        for variant, returns in zip(variants, result.by_variant(len(variants)), strict=True):
            print(f"variant {variant} ({environment.variant_names[variant]}): return {_spread(returns)}")


def _show(policy: SavedPolicy, environment: EnvironmentConfig, variant: int, seed: int) -> None:
    """Plays an episode in a window, at the speed of the environment."""
    with loading():
        from penstock.acting.policies.trained import TrainedPolicy
    print("showing one episode in a window", flush=True)
    trained = TrainedPolicy(policy.weights, module=policy.network.module)
    hint = ""
    try:
        with closing(make_played(environment, variant, "human")) as shown:
            modes = shown.metadata.get("render_modes") or ()
            if "human" not in modes:
                raise ConfigurationError("its metadata['render_modes'] has no 'human'")
            hint = "; --record-video films it without one" if "rgb_array" in modes else ""
            observation, info = shown.reset(seed=seed)
            ended = False
            while not ended:
                action = trained.act(observation, action_mask=info.get("action_mask"))
                observation, _, terminated, truncated, info = shown.step(action)
                ended = terminated or truncated
    except (ConfigurationError, EnvironmentFailed) as error:
        raise ConfigurationError(f"can't show {environment.id} in a window: {error}{hint}") from None


def _spread(returns: EvaluationResult | VariantReturns) -> str:
    return return_text(returns.return_mean, returns.return_std)


def _chosen_variants(config: Sections, named: int | None) -> list[int]:
    """Returns the numbers of the variants to play; only 0 if the run has no variants."""
    known = len(config.environment.variant_kwargs)
    if named is None:
        return list(range(known))
    if not config.environment.variants or not 0 <= named < known:
        present = f"{known} variants, numbered from 0" if config.environment.variants else "no variants"
        raise ConfigurationError(f"environment variant {named} does not exist; the run has {present}")
    return [named]


def _check_same_spaces(path: Path, policy: SavedPolicy, spec: EnvironmentSpec) -> None:
    if not same_spaces(policy.spec, spec):
        raise ConfigurationError(
            f"{path} was trained for {policy.spec.id}, whose spaces or action masks differ from {spec.id}'s"
        )


def _config_of(path: Path, named: argparse.Namespace) -> Sections:
    """Returns the settings of the environment and of evaluations, with the environment that the options name.

    Raises `ForeignCode` if the run alone names code for its environment; the code of its policy was checked before.
    """
    folder = RunFolder(path.parent.parent)
    own: dict[str, object] = {} if named.env_id is None else {"id": named.env_id}
    own |= {} if named.env_import is None else {"imports": ",".join(named.env_import)}
    if not folder.config.exists():
        if named.env_id is None:
            raise ConfigurationError(f"{path} is not in a run folder; pass --env-id")
        return Config(environment=own)
    note_removed_settings(folder)
    names = (*ENVIRONMENT, "evaluation.max_episode_steps", "run.seed")
    config = read_settings(folder.config, *names, changes={"environment": own})
    if not named.trust_code:
        foreign = FileNames.all_in(folder.config, config).without({"environment": own})
        foreign.refuse(config)
    if named.env_id is None or config.environment.vectorization != "native":
        return config
    import_modules(config.environment.imports)
    if has_native_form(named.env_id):
        return config
    return read_settings(folder.config, *names, changes={"environment": {**own, "vectorization": "sync"}})

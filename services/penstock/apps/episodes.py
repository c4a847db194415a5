"""Plays episodes with a trained policy, for `penstock evaluate` and `penstock.evaluate`.

It refuses a policy whose spaces are not those of the environment, and code that the run's file alone names.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.acting.environments.interfaces.parallel_agents import UnevenRows
from penstock.acting.environments.registry import has_native_form
from penstock.acting.evaluation import evaluate
from penstock.acting.policies.runners import runner_of
from penstock.acting.policies.saved_policies import SavedPolicy, read_policy
from penstock.apps.environments import known_variants, variants_of
from penstock.config import Config, EnvironmentConfig, read_settings
from penstock.config.foreign_code import FileNames
from penstock.config.recorded import ENVIRONMENT
from penstock.config.sections import Sections
from penstock.errors import ConfigurationError
from penstock.machine.module_imports import import_modules
from penstock.runs.evaluation import Evaluation
from penstock.runs.folder import RunFolder, find_checkpoint
from penstock.types.differences import same_spaces
from penstock.types.evaluation import EvaluationTask
from penstock.types.spaces import EnvironmentSpec
from penstock.types.variants import RunVariant

SEED_BITS = 63
"""Bits of the seed of episodes."""


@dataclass(frozen=True, slots=True)
class Playable:
    """A trained policy and the settings of an environment for it.

    Attributes:
        policy: The policy.
        environment: Settings of the environment. It is made when episodes are played.
        variants: The variants of the run by number; without variants, one for the environment.
        seed: Seed of the run.
        most_steps: Most steps of an episode.
        alone: Whether each environment has a worker process of its own, as emulators need it.
    """

    policy: SavedPolicy
    environment: EnvironmentConfig
    variants: Sequence[RunVariant]
    seed: int
    most_steps: int
    alone: bool


def playable(
    run: Path,
    *,
    env_id: str | None = None,
    imports: Sequence[str] = (),
    module: str | type | None = None,
    trust_code: bool = False,
) -> Playable:
    """Reads a policy and the settings of its environment from a run's folder or a checkpoint file.

    Args:
        run: Folder of the run, or the file.
        env_id: Another environment with the same spaces; needed for a file that is not in a run's folder.
        imports: Modules or files to import before the environment is made, in place of the run's.
        module: Module of the policy, as for `load_policy`.
        trust_code: Whether to import the code that the run names.

    Raises:
        ForeignCode: The run alone names code. Nothing was imported.
        ConfigurationError: There is no policy, or it or the settings can't be read.
    """
    file = find_checkpoint(run)
    policy = read_policy(file, module=module, trust_code=trust_code)
    # Faults of the file are found before the environment is made.
    with policy.errors_named():
        runner_of(policy.weights, module=policy.network.module)
    config = _config_of(file, env_id, imports, trust_code=trust_code)
    most_steps, alone = config.evaluation.most_episode_steps, config.has_lone_environments
    variants = known_variants(config.environment, None if env_id is not None else RunFolder(file.parent.parent))
    return Playable(policy, config.environment, variants, config.run.seed, most_steps, alone)


def play(
    playable: Playable,
    episodes: int,
    *,
    seed: int | None = None,
    deterministic: bool = True,
    variant: int | None = None,
) -> Evaluation:
    """Plays episodes, each in an environment of its own, all at once. Arguments as for `penstock.evaluate`.

    Raises:
        ConfigurationError: The environment can't be made or has other spaces, or an argument is out of range.
        EnvironmentFailed: The environment failed while it was played.
    """
    policy, environment = playable.policy, playable.environment
    variants, seed = chosen_variants(playable, variant), chosen_seed(playable, seed)
    if episodes < 1:
        raise ConfigurationError(f"episodes must be at least 1; got {episodes}")
    if episodes < len(variants):
        raise ConfigurationError(
            f"{episodes} episodes can't be spread over the run's {len(variants)} environment variants; play more"
            " episodes, or choose one variant"
        )
    kwargs = [kwargs_of(playable, number) for number in variants]
    made = variants_of(environment, kwargs, workers=episodes if playable.alone else None)
    try:
        mixed = made.make_mixed(episodes)
    except UnevenRows as uneven:
        # Every agent of a game plays an episode.
        mixed = made.make_mixed(uneven.filled(episodes, len(variants)))
    task = EvaluationTask(
        0, policy.weights, mixed.count, deterministic, seed, len(variants), max_episode_steps=playable.most_steps
    )
    with closing(mixed) as environments:
        _check_same_spaces(policy, environments.spec)
        result = evaluate(
            task, environments, lambda: False, module=policy.network.module, info_metrics=environment.info_metrics
        )
    assert result is not None
    named = zip(variants, result.by_variant(variants), strict=True) if environment.variants else ()
    return Evaluation(
        env_id=environment.id,
        checkpoint=str(policy.file),
        version=result.version,
        seed=seed,
        returns=result.returns,
        steps=result.steps,
        unfinished=result.unfinished,
        most_steps=playable.most_steps,
        variants=tuple((number, playable.variants[number].name, found) for number, found in named),
        info_metrics=result.info_metrics,
    )


def kwargs_of(playable: Playable, number: int) -> dict[str, Any]:
    """Returns all arguments of the environments of a variant."""
    return {**playable.environment.kwargs, **playable.variants[number].arguments}


def check_spaces(playable: Playable, variant: int) -> None:
    """Makes the environment of a variant, and raises `ConfigurationError` if its spaces are not the policy's."""
    kwargs = [kwargs_of(playable, variant)]
    with closing(variants_of(playable.environment, kwargs).make_mixed(1)) as environments:
        _check_same_spaces(playable.policy, environments.spec)


def videos_of(playable: Playable) -> Path:
    """Returns the folder of the films of the policy's run."""
    file = playable.policy.file
    return RunFolder(file.parent.parent if file.parent.name == "checkpoints" else file.parent).videos


def chosen_variants(playable: Playable, variant: int | None) -> list[int]:
    """Returns the numbers of the variants to play, None: all that are not retired.

    Raises `ConfigurationError` for an unknown number.
    """
    known = len(playable.variants)
    if variant is None:
        return [number for number, each in enumerate(playable.variants) if not each.retired]
    if not playable.environment.variants or not 0 <= variant < known:
        present = f"{known} variants, numbered from 0" if playable.environment.variants else "no variants"
        raise ConfigurationError(f"environment variant {variant} does not exist; the run has {present}")
    return [variant]


def chosen_seed(playable: Playable, seed: int | None) -> int:
    """Returns the seed of the episodes; None: the run's. Raises `ConfigurationError` for a number out of range."""
    if seed is None:
        return playable.seed
    if not 0 <= seed < 2**SEED_BITS:
        raise ConfigurationError(f"the seed of episodes must be from 0 to 2**{SEED_BITS} - 1; got {seed}")
    return seed


def _check_same_spaces(policy: SavedPolicy, spec: EnvironmentSpec) -> None:
    if not same_spaces(policy.spec, spec):
        raise ConfigurationError(
            f"{policy.file} was trained for {policy.spec.id}, whose spaces or action masks differ from {spec.id}'s"
        )


def _config_of(file: Path, env_id: str | None, imports: Sequence[str], *, trust_code: bool) -> Sections:
    """Returns the settings of the environment and of evaluations, with the given id and imports.

    Raises `ForeignCode` if the run alone names code for its environment; the code of its policy was checked before.
    """
    folder = RunFolder(file.parent.parent)
    own: dict[str, object] = {} if env_id is None else {"id": env_id}
    own |= {"imports": ",".join(imports)} if imports else {}
    if not folder.config.exists():
        if env_id is None:
            raise ConfigurationError(
                f"{file} is not in a run folder; pass --env-id (in Python env_id), the environment to play"
            )
        return Config(environment=own)
    names = (*ENVIRONMENT, "evaluation.max_episode_steps", "evaluation.episodes", "actor.environments", "run.seed")
    config = read_settings(folder.config, *names, changes={"environment": own})
    if not trust_code:
        foreign = FileNames.all_in(folder.config, config).without({"environment": own})
        foreign.refuse(config)
    if env_id is None or config.environment.vectorization != "native":
        return config
    import_modules(config.environment.imports)
    if has_native_form(env_id):
        return config
    return read_settings(folder.config, *names, changes={"environment": {**own, "vectorization": "sync"}})

"""Makes the configured environments, for actors, evaluations, checks, studies and a user's own loop."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from penstock.acting.environments.frames import with_frames
from penstock.acting.environments.interfaces.parallel_agents import UnevenRows
from penstock.acting.environments.making import TIMEOUT_S, Making
from penstock.acting.environments.played import PlayedEnvironment
from penstock.acting.environments.single_environments import SingleEnvironments
from penstock.acting.environments.variants import Arguments, EnvironmentVariants
from penstock.acting.environments.varied import Variation
from penstock.acting.environments.vectors import Environments, make_environments
from penstock.acting.environments.wrappers.bodies import Sizes, wrapping
from penstock.config import Config, EnvironmentConfig, read_settings
from penstock.config.added_variants import check_added
from penstock.config.foreign_code import FileNames
from penstock.config.recorded import ENVIRONMENT
from penstock.errors import ConfigurationError
from penstock.machine.cores import usable_cores
from penstock.machine.environment_arguments import table_of_text
from penstock.machine.system_errors import in_words
from penstock.runs.folder import RunFolder
from penstock.runs.variants_file import read_variants
from penstock.types.run import PlayedVariant
from penstock.types.variants import RunVariant


def variants_of(
    environment: EnvironmentConfig,
    arguments: Sequence[Arguments],
    *,
    timeout_s: float = TIMEOUT_S,
    workers: int | None = None,
) -> EnvironmentVariants:
    """Returns variants of the configured environment, each with all its arguments. Arguments as for `making_of`."""
    makings = [making_of(environment, each, timeout_s=timeout_s, workers=workers) for each in arguments]
    return EnvironmentVariants(makings, environment.frame_stack)


def making_of(
    environment: EnvironmentConfig, arguments: Arguments, *, timeout_s: float = TIMEOUT_S, workers: int | None = None
) -> Making:
    """Returns what the configured environment is made from, in a variant with these arguments.

    `timeout_s` is the time that a call of an environment in a worker process may take, and `workers` the number of
    these processes; None: as configured. Raises `ConfigurationError` if padding has no sizes yet, or the arguments are
    no variant's that can be shown.
    """
    sizes = environment.pad_spaces
    if sizes == "auto":
        raise ConfigurationError(
            "only the check before a run of `penstock train` finds the sizes for environment.pad_spaces auto; set them"
            " here, as it prints them: the numbers of an observation and of an action, such as 24,6"
        )
    own = wrapping(None if sizes is None else Sizes(*sizes), environment.shown(arguments))
    return Making(
        environment.id,
        arguments,
        environment.imports,
        [*environment.wrappers, *own],
        environment.vectorization,
        workers or environment.workers or usable_cores(),
        timeout_s,
        environment.python,
        environment.action_masks,
        environment.info_metrics,
    )


def variation_of(environment: EnvironmentConfig, played: PlayedVariant) -> Variation:
    """Returns the variant that an actor's environments play in turn with others.

    Raises `ConfigurationError` if the settings do not permit it.
    """
    kwargs = {**_kwargs_of(environment, played), **environment.training_kwargs}
    making = making_of(environment, kwargs)
    return Variation(played.number, kwargs, making.wrappers, played.share)


def make_configured(environment: EnvironmentConfig, count: int, variants: Sequence[PlayedVariant] = ()) -> Environments:
    """Makes N environments that alternate between these variants; none: between those configured.

    Raises `ConfigurationError` if they can't be made, or the settings do not permit a variant.
    """
    found = [_kwargs_of(environment, each) for each in variants]
    return variants_of(environment, found or environment.variant_kwargs).make_mixed(count)


def _kwargs_of(environment: EnvironmentConfig, played: PlayedVariant) -> Arguments:
    arguments = table_of_text(played.arguments)
    if arguments not in [dict(each) for each in environment.variants]:
        check_added(environment, arguments)
    return {**environment.kwargs, **arguments}


def make(
    run: str | os.PathLike[str] | Config,
    *,
    variant: int = 0,
    render_mode: str | None = None,
    trust_code: bool = False,
) -> PlayedEnvironment:
    """Makes the environment of a run, with Gymnasium's interface, ready for `TrainedPolicy.act`.

    Its observations have the form on which the policy was trained: frames are stacked and images have channels first.
    If the policy was trained with action masks, `info["action_mask"]` is the mask to pass to `act`. For example::

        env, policy = penstock.make("runs/first"), penstock.load_policy("runs/first")
        observation, info = env.reset(seed=1)
        action = policy.act(observation, action_mask=info.get("action_mask"))

    Args:
        run: A run, its folder, or a configuration.
        variant: Number of the environment variant, from 0.
        render_mode: Render mode, as for `gymnasium.make`. An environment is then made in its single form, even if the
            run uses the environment's own vectorised form.
        trust_code: Whether to import the code that the run's file names: an environment with a module, and modules to
            import. Instead, you may name it yourself: `make(Config.load(run).changed(env_id="file.py:MyEnv"))`.

    Raises:
        ForeignCode: The run's file names code, and you do not. Nothing was imported.
        ConfigurationError: There is no such run or variant, or the environment can't be made.
    """
    if isinstance(run, Config):
        environment = run.environment
        if not trust_code:
            run.refuse_foreign_code()
    else:
        environment = _environment_of(Path(run), trust_code=trust_code)
    known = known_variants(environment, None if isinstance(run, Config) else RunFolder(Path(run)))
    if not 0 <= variant < len(known):
        raise ConfigurationError(f"environment variant {variant} does not exist; the run has {len(known)}, from 0")
    return make_played(environment, {**environment.kwargs, **known[variant].arguments}, render_mode)


def known_variants(environment: EnvironmentConfig, folder: RunFolder | None) -> list[RunVariant]:
    """Returns the variants of a run by number; without variants, one for the environment.

    Those that were added during the run are in its folder. Raises `ConfigurationError` if they can't be read, or the
    settings do not permit them.
    """
    known = [RunVariant(number, each) for number, each in enumerate(environment.variants or ({},))]
    if folder is None or not environment.variants or not folder.variants.exists():
        return known
    try:
        found = read_variants(folder.variants)
    except (OSError, ValueError) as error:
        reason = in_words(error, folder.variants) if isinstance(error, OSError) else error
        raise ConfigurationError(f"can't read the variants of the run in {folder.variants}: {reason}") from error
    for each in found[len(known) :]:
        check_added(environment, each.arguments)
    return found


def make_played(environment: EnvironmentConfig, arguments: Arguments, render_mode: str | None) -> PlayedEnvironment:
    """Makes one environment with these arguments, as `make` does. Raises `ConfigurationError`."""
    making, single = making_of(environment, arguments), None
    # Only an environment of this process can be rendered, and a worker gains nothing for one environment.
    if render_mode is not None or making.vectorization == "process":
        making = replace(making, vectorization="sync")
    if render_mode is not None:
        making = replace(making, kwargs={**making.kwargs, "render_mode": render_mode})
    try:
        made = make_environments(replace(making, info_metrics=()), 1)
    except UnevenRows as uneven:
        raise ConfigurationError(
            f"{environment.short_name} has {uneven.agents} agents, and Gymnasium's interface has one; make it with"
            " PettingZoo, and act for each agent (docs/suites.md#several-agents)"
        ) from None
    if isinstance(made, SingleEnvironments):
        (single,) = made.envs
    return PlayedEnvironment(with_frames(made, environment.frame_stack), rendered=single)


def _environment_of(run: Path, *, trust_code: bool) -> EnvironmentConfig:
    folder = RunFolder(run)
    file = folder.config if run.is_dir() else run
    recorded = read_settings(file, *ENVIRONMENT)
    if not trust_code:
        FileNames.all_in(file, recorded).refuse(recorded)
    return recorded.environment

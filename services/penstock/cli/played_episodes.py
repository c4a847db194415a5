"""Plays episodes for `penstock evaluate`: prints their returns, and films or shows one on request."""

import argparse
from contextlib import closing

from penstock.apps.environments import make_played
from penstock.apps.episodes import (
    Playable,
    check_spaces,
    chosen_seed,
    chosen_variants,
    kwargs_of,
    play,
    playable,
    videos_of,
)
from penstock.cli.film import check_film, film
from penstock.cli.named import note_removed_settings
from penstock.errors import ConfigurationError, EnvironmentFailed
from penstock.machine.module_imports import loading
from penstock.process.environment_process import arguments_for, seed_generators
from penstock.runs.folder import RunFolder, find_checkpoint


def play_as_asked(named: argparse.Namespace) -> None:
    """Plays the episodes that these options of `penstock evaluate` name."""
    path = find_checkpoint(named.run)
    note_removed_settings(RunFolder(path.parent.parent))
    with arguments_for(named.env_id or ""):
        found = playable(
            path,
            env_id=named.env_id,
            imports=named.env_import or (),
            module=named.module,
            trust_code=named.trust_code,
        )
    with arguments_for(found.environment.id):
        _play(named, found)


def _play(named: argparse.Namespace, found: Playable) -> None:
    first, seed = chosen_variants(found, named.variant)[0], chosen_seed(found, named.seed)
    kwargs = kwargs_of(found, first)
    if named.record_video:
        check_film(found.policy, found.environment, kwargs)
    seed_generators(seed, "evaluation")
    if named.episodes:
        print(play(found, named.episodes, seed=seed, deterministic=not named.stochastic, variant=named.variant))
    else:
        check_spaces(found, first)
    if named.human:
        _show(found, first, seed)
    if named.record_video:
        print("filming one episode", flush=True)
        print(film(found.policy, found.environment, kwargs, folder=videos_of(found), seed=seed, output=named.output))


def _show(playable: Playable, variant: int, seed: int) -> None:
    """Plays an episode in a window, at the speed of the environment."""
    policy, environment = playable.policy, playable.environment
    with loading():
        from penstock.acting.policies.trained import TrainedPolicy
    print("showing one episode in a window", flush=True)
    trained = TrainedPolicy(policy.weights, module=policy.network.module)
    hint = ""
    try:
        with closing(make_played(environment, kwargs_of(playable, variant), "human")) as shown:
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

"""Environments that fail or hang during training: the messages to the user, and the rest of the run."""

from pathlib import Path

import pytest

from penstock.runs.folder import RunFolder
from tests.support.services.processes import WITH_HELPERS, Command, end_of, run, watching

pytestmark = pytest.mark.nightly

OPTIONS = [
    "--env-id=Failing-v0",
    "--env-import=tests.support.environments.failing",
    "--actors=2",
    "--envs-per-actor=2",
    "--sampling.batch-segments=4",
    "--sampling.fresh-fraction=0.5",
    "--evaluation.episodes=1",
    "--evaluation.interval-steps=1000000",
    "--checkpoint.save-interval=500",
]


def train(folder: Path, *options: str) -> list[str]:
    return ["train", *OPTIONS, f"--run-dir={folder}", *options]


def test_an_actor_continues_after_its_environment_failed_and_the_user_is_notified(tmp_path: Path) -> None:
    kwargs = f"--environment.kwargs=kind=reward nan,at=300,once={tmp_path / 'once'}"
    ended = run(*train(tmp_path / "run", "--total-steps=3000", kwargs), environment=WITH_HELPERS)
    assert ended.code == 0, ended.stdout + ended.stderr
    notices = [line for line in ended.stdout.splitlines() if "environment " in line and "actor-" in line]
    assert len(notices) == 1
    assert "a reward of nan in step 50 of its episode (Failing-v0); a reward must be" in notices[0]
    assert "was started again" not in ended.stdout
    assert ended.left_behind == []


def test_a_run_in_which_every_actor_fails_ends_with_the_message_of_the_failure(tmp_path: Path) -> None:
    folder, broken = RunFolder(tmp_path / "run"), tmp_path / "broken"
    kwargs = f"--environment.kwargs=kind=raises,at=20,since={broken}"
    told = tmp_path / "told"
    on_end = f'--run.on-end=echo "$PENSTOCK_RUN_REASON $PENSTOCK_RUN_EXIT_CODE $PENSTOCK_RUN_ERROR" >> {told}'
    with Command(*train(folder.root, "--total-steps=1000000", kwargs, on_end), environment=WITH_HELPERS) as command:
        command.until(folder.numbered_checkpoints, "a checkpoint")
        broken.touch()
        ended = end_of(command)
    assert ended.code == 3, ended.stdout + ended.stderr
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("penstock: ")
    for part in ("actor-", "environment ", "RuntimeError: simulator lost and not found (", " in step ", "Failing-v0"):
        assert part in last
    assert "3 times in a row" in last
    assert told.read_text() == f"fault 3 {last.removeprefix('penstock: ')}\n"
    assert "Traceback" not in ended.stdout + ended.stderr
    assert folder.config.exists() and folder.replay.exists() and folder.numbered_checkpoints()
    assert ended.left_behind == []


def test_while_one_environment_hangs_the_other_actor_continues_and_the_user_is_notified(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    kwargs = f"--environment.kwargs=kind=hangs,at=60,pause_s=0.002,once={tmp_path / 'once'}"
    options = ["--total-steps=1000000", "--replay.grant-timeout-s=2", "--actor.step-timeout-s=100000", kwargs]
    with Command(*train(folder, *options), environment=WITH_HELPERS) as command:
        with watching(command, folder) as watch:
            stuck = watch.until(
                lambda status: any(actor.stuck_s > 5.0 for actor in status.actor_states), "an actor to be stuck"
            )
            name = max(stuck.actor_states, key=lambda actor: actor.stuck_s).name
            later = watch.until(lambda status: status.env_steps > stuck.env_steps + 500, "the other actor to continue")
            states = {actor.name: actor for actor in later.actor_states}
            assert states.keys() == {"actor-0", "actor-1"}
            assert states[name].stuck_s > 5.0
            assert states[name].doing.startswith("step of environment ")
            assert states.pop(name).segments < next(iter(states.values())).segments
        command.until_output(f"{name} (slot ")
        command.until_output("step of environment")
        command.interrupt()
        ended = end_of(command)
    assert ended.code == 130
    assert ended.left_behind == []

"""Snapshots of a run that goes on, as its user takes and restores them."""

import json
import shutil
from pathlib import Path

from helpers.processes import IN_TIME_S, WITH_HELPERS, Command, end_of, run, wait_for, watching
from penstock.run_folder import RunFolder

SETTINGS = (
    "--env-id=Paced-v0 --env-import=helpers.paced --actors=2 --envs-per-actor=4 --ppo.epochs=1 --train.replay-shards=2"
    " --evaluation.episodes=5 --evaluation.interval-steps=100000 --total-steps=1000000"
)


def events(folder: Path, service: str, event: str) -> list[dict[str, object]]:
    lines = (RunFolder(folder).logs / f"{service}.log").read_text().splitlines()
    # Errors are written there as they are printed.
    entries = [json.loads(line) for line in lines if line.startswith("{")]
    return [entry for entry in entries if entry["event"] == event]


def test_a_runs_snapshots_are_taken_listed_and_restored(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    here = f"--run-dir={folder}"
    with Command("train", *SETTINGS.split(), here, environment=WITH_HELPERS) as command:
        with watching(command, folder) as watch:
            watch.until(lambda now: now.env_steps >= 3_000, "3,000 steps")
            taken = run("replay", "snapshot", here, "early")
            again = run("replay", "snapshot", "early", here)
            watch.until(lambda now: now.env_steps >= 6_000, "6,000 steps")
            unnamed = run("replay", "snapshot", here)
            listed = run("replay", "snapshots", here)
            before = watch.status()
            # Both stores are lost while the run goes on: it goes on with empty ones, and the actors join again.
            for name in ("replay-0", "replay-1"):
                store = RunFolder(folder).replay / name
                shutil.rmtree(store)
                (service,) = [each for each in command.family() if f"--replay.folder={store}" in each.cmdline()]
                service.kill()
                command.until_it_says(f"{name} ended with SIGKILL and was started again")
            watch.until(lambda now: now.version > before.version + 20, "training to go on")
        command.interrupt()
        ended = end_of(command, IN_TIME_S)
    assert ended.code == 130, ended.stdout + ended.stderr
    assert (taken.code, unnamed.code, listed.code) == (0, 0, 0), taken.stderr + unnamed.stderr + listed.stderr
    assert "snapshot early" in taken.stdout and "of 2 services" in taken.stdout
    assert f"penstock train --resume {folder} --replay.restore early\n" in taken.stdout
    assert (again.code, again.stderr.count("\n")) == (2, 1)
    assert "there is a snapshot 'early'" in again.stderr
    # Oldest first, a line each.
    rows = [line.split() for line in listed.stdout.splitlines() if "2 of 2" in line]
    assert len(rows) == 2 and rows[0][0] == "early"
    assert any(events(folder, f"actor-{actor}", "joining again") for actor in (0, 1))

    refused = run("train", f"--resume={folder}", "--replay.restore=early", environment=WITH_HELPERS)
    assert refused.code == 2
    assert "holds segments of another store than the one restored from snapshot 'early'" in refused.stderr

    shutil.rmtree(RunFolder(folder).replay)
    options = (f"--resume={folder}", "--replay.restore=early", "--replay.snapshot-interval-s=0.5")
    with Command("train", *options, environment=WITH_HELPERS) as command:
        with watching(command, folder) as watch:
            wait_for(
                lambda: all(events(folder, f"replay-{shard}", "restored") for shard in (0, 1)), "both are restored"
            )
            first = watch.until(lambda now: now.version > 0, "training")
            watch.until(lambda now: now.version > first.version + 20, "training to go on")
            # By themselves, every half second; as many are kept as are wanted.
            wait_for(lambda: len(events(folder, "replay-0", "snapshot")) >= 2 + 4, "snapshots on an interval")
        command.interrupt()
        ended = end_of(command, IN_TIME_S)
    assert ended.code == 130, ended.stdout + ended.stderr
    assert events(folder, "replay-0", "restored")[0]["snapshot"] == "early"
    kept = [each for each in (RunFolder(folder).snapshots / "replay-0").iterdir() if each.name[0] != "."]
    assert len(kept) == 3

"""No trained segment is staler than the settings allow, even with slow, stopped or killed actors."""

import signal
import time
from pathlib import Path

import psutil
import pytest

from penstock.runs.folder import RunFolder
from penstock.runs.summary import Summary
from tests.support.services.processes import WITH_HELPERS, Command, end_in_time, watching

pytestmark = pytest.mark.nightly

DEGREE, INTERVAL, MAX_STALENESS = 2, 2, 6


def actors_of(command: Command) -> list[psutil.Process]:
    return [process for process in command.family() if "actor" in process.cmdline()[3:4]]


def test_segments_of_slow_stopped_and_killed_actors_are_never_trained_too_late(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = (
        "--env-id=Paced-v0 --env-import=tests.support.environments.paced --actors=3"
        " --envs-per-actor=4 --actor.unroll-length=8"
        " --ppo.epochs=1 --total-steps=1000000000 --evaluation.interval-steps=1000000000"
        " --sampling.batch-segments=24 --sampling.fresh-fraction=0.5"
        f" --sampling.off-policy-degree={DEGREE} --sampling.publish-interval={INTERVAL}"
        f" --sampling.max-staleness={MAX_STALENESS} --sampling.half-life=1000 --sampling.min-replay-segments=12"
    )
    with Command("train", *options.split(), f"--run-dir={folder}", environment=WITH_HELPERS) as command:
        with watching(command, folder) as watch:
            watch.until(lambda now: now.version > 10 and now.actors == 3, "training with three actors")
            stopped, killed, slowed = actors_of(command)
            stopped.send_signal(signal.SIGSTOP)
            before = watch.status().version
            watch.until(lambda now: now.version > before + 4 * MAX_STALENESS, "training without one actor")
            stopped.send_signal(signal.SIGCONT)
            killed.kill()
            command.until_output("ended with SIGKILL")
            # A tenth of its speed.
            for _ in range(20):
                slowed.send_signal(signal.SIGSTOP)
                time.sleep(0.09)
                slowed.send_signal(signal.SIGCONT)
                time.sleep(0.01)
            before = watch.status().version
            watch.until(lambda now: now.actors == 3 and now.version > before + 4 * MAX_STALENESS, "training with three")
        command.interrupt()
        ended = end_in_time(command)
    assert ended.code == 130, ended.stdout + ended.stderr
    found = Summary.read(RunFolder(folder).summary).statistics
    assert found is not None and found.lag is not None and found.staleness is not None
    assert found.drops.late_segments > 0
    # Whether a segment of the largest age is drawn depends on timing.
    assert DEGREE <= found.lag.maximum <= DEGREE + INTERVAL - 1
    # Replay reached its bound.
    assert found.staleness.maximum == MAX_STALENESS

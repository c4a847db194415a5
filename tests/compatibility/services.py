"""Small runs of this release or of another commit: their settings, and their commands in a folder."""

import contextlib
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import tomli_w

from tests.support.machine.timing import start_patience_s

ROOT = Path(__file__).parents[2]

SETTINGS: Mapping[str, Mapping[str, object]] = {
    "run": {"seed": 1, "total_steps": 600},
    "environment": {"id": "CartPole-v1", "vectorization": "sync"},
    "train": {"actors": 1},
    "policy": {"hidden_sizes": [4], "normalise_observations": False, "normalise_returns": False},
    "ppo": {"minibatches": 2},
    "sampling": {"batch_segments": 8, "fresh_fraction": 0.5, "min_replay_segments": 8},
    "replay": {"capacity_bytes": 65536, "staging_bytes": 0},
    "actor": {"environments": 2, "unroll_length": 4},
    "evaluation": {"interval_steps": 300, "episodes": 2},
    "checkpoint": {"save_interval": 300, "max_checkpoints": 1},
    "telemetry": {"log_format": "json"},
}
"""Settings of both runs, all of which every release has."""


def unpack(release: Path, folder: Path) -> None:
    """Extracts the recorded folders of a release's services."""
    with tarfile.open(release / "services.tar.xz") as archive:
        # Filters exist since Python 3.11.4; Debian 12 has 3.11.2.
        if hasattr(tarfile, "data_filter"):
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(folder)


class Release:
    """Commands of a release, in a folder that has its runs."""

    def __init__(self, folder: Path, code: Path = ROOT, python: str = sys.executable) -> None:
        """Takes a checkout of its code, and an interpreter with its dependencies."""
        self._python, self.folder = python, folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK")}
        self._environment = {**kept, "PYTHONPATH": str(code / "services")}
        (folder / "settings.toml").write_text(tomli_w.dumps(SETTINGS))

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts a command with the settings above, and writes its output into the folder."""
        log = (self.folder / f"{arguments[0]}.log").open("ab")
        command = [self._python, "-m", "penstock", *arguments, "--config", "settings.toml"]
        return subprocess.Popen(command, cwd=self.folder, env=self._environment, stdout=log, stderr=log)

    def penstock(self, *arguments: str) -> None:
        """Runs a command to its end, which must be a success."""
        code = self.start(*arguments).wait(start_patience_s())
        output = (self.folder / f"{arguments[0]}.log").read_text()
        assert code == 0, f"penstock {' '.join(arguments)} ended with code {code}: {output}"

    def output(self, program: str) -> bytes:
        """Returns what a program in Python prints."""
        command = [self._python, "-c", program]
        return subprocess.run(
            command, cwd=self.folder, env=self._environment, check=True, stdout=subprocess.PIPE
        ).stdout

    @contextlib.contextmanager
    def services(self, names: Sequence[str], options: Sequence[str]) -> Iterator[Callable[[], bool]]:
        """Runs services, individually started, inside the context. Yields a check that none has ended."""
        started = [self.start(name, *options) for name in names]

        def alive() -> bool:
            for name, process in zip(names, started, strict=True):
                output = (self.folder / f"{name}.log").read_text()
                assert process.poll() is None, f"penstock {name} ended with code {process.poll()}: {output}"
            return True

        try:
            yield alive
        finally:
            for process in reversed(started):
                process.terminate()
            for process in started:
                process.wait(start_patience_s())


def options_of(
    replay: int, learner: int, *, seen_replay: int | None = None, seen_learner: int | None = None
) -> list[str]:
    """Returns the options of services in `services/` and `store/` at these ports, which others see at other ports."""
    to_replay, to_learner = f"127.0.0.1:{seen_replay or replay}", f"127.0.0.1:{seen_learner or learner}"
    values = {
        "run.dir": "services",
        "run.total-steps": "100000000",
        "replay.folder": "store",
        "replay.listen": f"127.0.0.1:{replay}",
        "learner.listen": f"127.0.0.1:{learner}",
        "learner.replay-addresses": to_replay,
        "actor.learner-address": to_learner,
        "evaluation.learner-address": to_learner,
        "actor.listen": "127.0.0.1:0",
        "evaluation.listen": "127.0.0.1:0",
        **{f"{name}.metrics-port": "0" for name in ("replay", "learner", "actor", "evaluation")},
    }
    return [each for name, value in values.items() for each in (f"--{name}", value)]

"""The pace of each system when all do the same work: the table "like for like" of `make bench-loop`.

The work is that of `benchmarks.peers.equal_work`: the same vector environments, batches, passes, minibatches, networks
and losses, one torch thread per process, the same two cores. The first quarter of a run is left out. Called by `loop`.
"""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.observed import ROOT, Observed, Point, RunFailed, observe
from benchmarks.peers import equal_work, vector_pendulum
from benchmarks.peers.equal_work import Work
from benchmarks.peers.peer_programs import PEERS, Peer

SECONDS = 5.0
"""Seconds of a run from its first batch, a quarter of which is left out."""
LIMIT_S = 180.0
"""Seconds of a run from its command."""

LEAST_PACE = {"sb3": 5.0, "cleanrl": 5.0, "pufferlib": 5.0, "rllib": 8.0, "sample_factory": 8.0}
"""Smallest ratio of Penstock's steps/s to those of a peer."""
MOST_CPU = 0.4
"""Largest ratio of Penstock's CPU seconds per step to the smallest of all peers."""
LEAST_OF_BOUND = 0.5
"""Smallest ratio of Penstock's steps/s to the bound of `benchmarks.pipeline_bound`."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The pace of one run, after its first quarter.

    Attributes:
        env_steps_per_s: Environment steps per second.
        uses_per_s: Uses of environment steps in gradient steps, per second.
        cpu_s_per_million_steps: CPU seconds of all processes per million environment steps.
    """

    env_steps_per_s: float
    uses_per_s: float
    cpu_s_per_million_steps: float


def measure(system: str, work: Work, seconds: float = SECONDS) -> Pace:
    """Runs a system and returns its pace.

    Raises:
        RunFailed: The program failed, or trained too few batches before the limit.
        subprocess.CalledProcessError: The peer could not be installed.
    """
    peer = PEERS.get(system)
    command = penstock_command(work) if peer is None else peer_command(peer, work)
    seen = observe(
        command,
        work.journal,
        enough=lambda points: points[-1].seconds - points[0].seconds >= seconds,
        limit_s=LIMIT_S,
        variables={**variables(), **temporary(work.journal.parent.parent)},
        # PufferLib puts a link into its working directory.
        folder=work.journal.parent.parent,
    )
    return pace_of(seen)


def pace_of(seen: Observed) -> Pace:
    """Returns the pace without the first quarter. Raises `RunFailed` if there are too few points."""
    points = [point for point in seen.points if point.return_mean is None]
    counted = after_first_quarter(points)
    if len(counted) < 2:
        raise RunFailed(f"trained {points[-1].env_steps if points else 0} environment steps in {LIMIT_S:.0f} s")
    first, last = counted[0], counted[-1]
    steps = last.env_steps - first.env_steps
    per_s = steps / (last.seconds - first.seconds)
    return Pace(per_s, equal_work.EPOCHS * per_s, (last.cpu_s - first.cpu_s) / steps * 1e6)


def after_first_quarter(points: Sequence[Point]) -> list[Point]:
    """Returns the points after the first quarter of the time between the first and the last."""
    if not points:
        return []
    begin = points[0].seconds + (points[-1].seconds - points[0].seconds) / 4
    return [point for point in points if point.seconds >= begin]


def penstock_command(work: Work) -> list[str | Path]:
    """Returns the command of Penstock, which writes the journal into its run's folder."""
    options: dict[str, object] = {
        "preset": "none",
        "env-id": work.env_id,
        "environment.vectorization": "native",
        "seed": work.seed,
        "run-dir": work.journal.parent,
        "total-steps": equal_work.ENDLESS_STEPS,
        "evaluation.interval-steps": equal_work.ENDLESS_STEPS,
        "train.actors": 1,
        "actor.environments": equal_work.ENVIRONMENTS,
        "actor.unroll-length": equal_work.SEGMENT_STEPS,
        "sampling.batch-segments": equal_work.ENVIRONMENTS,
        "sampling.fresh-fraction": 1,
        "policy.hidden-sizes": ",".join(map(str, work.hidden)),
        "policy.activation": "tanh",
        "policy.normalise-observations": "false",
        "policy.normalise-returns": "false",
        "ppo.epochs": equal_work.EPOCHS,
        "ppo.minibatches": work.minibatches,
        "ppo.target-kl": "none",
        "ppo.learning-rate": equal_work.LEARNING_RATE,
        "ppo.discount": equal_work.DISCOUNT,
        "ppo.trace-decay": equal_work.TRACE_DECAY,
        "ppo.clip-range": equal_work.CLIP_RANGE,
        "ppo.value-coefficient": equal_work.VALUE_COEFFICIENT,
        "ppo.entropy-coefficient": equal_work.ENTROPY_COEFFICIENT,
        "ppo.max-gradient-norm": equal_work.MAX_GRADIENT_NORM,
        "learner.threads": 1,
    }
    if work.env_id == "Pendulum-v1":
        # Gymnasium has no vector form of it; see `vector_pendulum`.
        options["env-id"] = f"{vector_pendulum.__name__}:{vector_pendulum.ENV_ID}"
    return [sys.executable, "-m", "penstock", "train", *(f"--{name}={value}" for name, value in options.items())]


def peer_command(peer: Peer, work: Work) -> list[str | Path]:
    """Returns the command of a peer. Raises `subprocess.CalledProcessError` if it can't be installed."""
    return [peer.python(), "-m", f"benchmarks.peers.{peer.pace}", *peer.arguments(), *work.options()]


def variables() -> Mapping[str, str]:
    """Returns environment variables that give every process of every system one thread for its arithmetic."""
    return {"PYTHONPATH": f"{ROOT / 'services'}:{ROOT}", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def temporary(folder: Path) -> Mapping[str, str]:
    """Returns environment variables with which a program leaves temporary files in this folder alone."""
    return {"TMPDIR": str(folder)}


def run(
    system: str, env_id: str, minibatch: int, seed: int, seconds: float = SECONDS, units: int = equal_work.UNITS
) -> Pace:
    """Measures a system in a folder of its own. Raises as `measure`."""
    with tempfile.TemporaryDirectory(prefix="bench-") as parent:
        folder = Path(parent) / "run"
        if system in PEERS:
            folder.mkdir()
        name = "journal.jsonl" if system in PEERS else "metrics.jsonl"
        return measure(system, Work(env_id, minibatch, seed, folder / name, units), seconds)

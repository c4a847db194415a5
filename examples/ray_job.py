"""A run of Penstock on a Ray cluster: its services in one Ray actor, and each of its actors in a Ray task.

    ray job submit --working-dir . -- python examples/ray_job.py --actors 16 --run-dir /shared/runs/pong --preset pong

Ray starts a lost task again on another node, which asks for the learner's address and joins the run. If the services'
node is lost, they start again elsewhere and continue the run from its folder, which must then be shared by the nodes.
Further options are those of `penstock train`. docs/ray.md explains the options of `ray start` that this needs.
"""

import argparse
import subprocess
import sys
import threading
import time
from pathlib import Path

import ray

REPLAY_PORT, LEARNER_PORT = 7431, 7432
GIVE_UP_AFTER_S = 60
"""Seconds without the learner after which an actor's task fails and is retried, with the learner's new address."""


def start(service: str, *options: str) -> subprocess.Popen[bytes]:
    """Starts a service of Penstock."""
    return subprocess.Popen([sys.executable, "-m", "penstock", service, *options])


class Services:
    """The replay service, the learner and the evaluator, on one node."""

    def __init__(self, run_dir: str, options: list[str]) -> None:
        """Starts the services. An earlier run in the folder continues."""
        host = ray.util.get_node_ip_address()
        replay, self._learner = f"{host}:{REPLAY_PORT}", f"{host}:{LEARNER_PORT}"
        common = [
            *options,
            # The nodes of a Ray cluster trust one another.
            "--security.insecure=true",
            f"--replay.listen={replay}",
            f"--learner.listen={self._learner}",
            f"--learner.replay-addresses={replay}",
            f"--evaluation.learner-address={self._learner}",
            f"--run-dir={run_dir}",
        ]
        self._processes = [
            start("replay", *common, "--replay.stop-with-run=true"),
            start("learner", *common),
            start("evaluator", *common),
        ]
        self._ended = threading.Event()

    def learner(self) -> str:
        """Returns the learner's address."""
        return self._learner

    def wait(self) -> int:
        """Waits until the run has ended; returns the learner's exit code. Ends the other services if it failed."""
        replay, learner, evaluator = self._processes
        code = learner.wait()
        for other in (replay, evaluator):
            if code != 0:
                other.terminate()
            other.wait()
        return code


def act(services: "ray.actor.ActorHandle[Services]", options: list[str]) -> None:
    """Collects until the run is over. Raises an error, after which Ray tries again, if the actor ends earlier."""
    learner = ray.get(services.learner.remote())
    actor = start("actor", *options, f"--actor.learner-address={learner}", f"--actor.give-up-after-s={GIVE_UP_AFTER_S}")
    if code := actor.wait():
        raise RuntimeError(f"the actor ended with exit code {code}")


def main() -> int:
    """Runs until the run is over; returns the learner's exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--gpus", type=float, default=0.0, help="GPUs of the learner")
    parser.add_argument("--run-dir", type=Path, required=True)
    arguments, options = parser.parse_known_args()
    ray.init()
    options = [*options, f"--train.actors={arguments.actors}"]
    # Two calls run at once: `wait`, which lasts as long as the run, and one from an actor's task.
    placed = ray.remote(Services).options(
        num_cpus=1, num_gpus=arguments.gpus, max_restarts=-1, max_task_retries=-1, max_concurrency=2
    )
    services = placed.remote(str(arguments.run_dir.resolve()), options)
    task = ray.remote(act).options(num_cpus=1, max_retries=-1, retry_exceptions=True, scheduling_strategy="SPREAD")
    actors = [task.remote(services, options) for _ in range(arguments.actors)]
    code: int = ray.get(services.wait.remote())
    # Actors end by themselves when the run is over.
    ray.wait(actors, num_returns=len(actors), timeout=GIVE_UP_AFTER_S)
    return code


if __name__ == "__main__":
    began = time.monotonic()
    ended = main()
    print(f"the run ended with code {ended} after {time.monotonic() - began:.0f} s")
    sys.exit(ended)

"""The pace that no pipeline of one collecting and one training process can exceed on two cores.

One process does what a collected step needs and nothing else: the environments, the policy's products and tanh, and a
draw. Another does what a gradient step needs and nothing else: the products and tanh of both networks, forwards and
backwards. Both run at once, because they share caches and bandwidth. Paces are per CPU
second, so that other programs on the machine do not lower them. Called by `loop`, which reports Penstock's share.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from benchmarks.like_for_like import variables
from benchmarks.observed import ROOT
from benchmarks.peers import equal_work
from benchmarks.peers.equal_work import ENVIRONMENTS, UNITS, VECTOR_ENVIRONMENTS
from penstock.algo.network import Network
from penstock.algo.parameters import flatten
from penstock.small.compiled import passes
from penstock.small.compiled.flat_network import FlatNetwork
from tests.support.environments.tiny import spec_of
from tests.support.training.policies import fresh_policy

SECONDS = 3.0
LIMIT_S = 60.0
ESTIMATES = 1.0 / 3.0
"""Cost of the forward pass that estimates values before a batch is trained, in uses of a step: a use is one forward and
two backward products of each layer."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The bound for one task and one size of minibatches.

    Attributes:
        collected_per_cpu_s: Environment steps that one process collects per CPU second.
        trained_per_cpu_s: Rows of minibatches that one process trains per CPU second.
        env_steps_per_s: Bound of the pipeline: the smaller of the two, with the uses that each step has.
    """

    collected_per_cpu_s: float
    trained_per_cpu_s: float
    env_steps_per_s: float


def bound(env_id: str, minibatch: int, seconds: float = SECONDS) -> Bound:
    """Measures both processes at once. Raises `subprocess.CalledProcessError` or `TimeoutExpired` if one fails."""
    words = [sys.executable, "-m", "benchmarks.pipeline_bound", f"--env-id={env_id}", f"--minibatch={minibatch}"]
    commands = [[*words, f"--seconds={seconds}", f"--part={part}"] for part in ("collect", "train")]
    runs = [
        subprocess.Popen(command, cwd=ROOT, env={**os.environ, **variables()}, stdout=subprocess.PIPE, text=True)
        for command in commands
    ]
    try:
        outputs = [run.communicate(timeout=LIMIT_S)[0] for run in runs]
    finally:
        for run in runs:
            run.kill()
    for run in runs:
        if run.returncode:
            raise subprocess.CalledProcessError(run.returncode, run.args)
    collected, trained = (float(json.loads(output)) for output in outputs)
    return Bound(collected, trained, min(collected, trained / (equal_work.EPOCHS + ESTIMATES)))


def collecting(env_id: str) -> Callable[[], int]:
    """Returns a function that takes one step in all environments and returns their number."""
    environments = VECTOR_ENVIRONMENTS[env_id](num_envs=ENVIRONMENTS)
    random = np.random.default_rng(0)
    inputs = environments.single_observation_space.shape[0]
    continuous = bool(environments.single_action_space.shape)
    outputs = environments.single_action_space.shape[0] if continuous else environments.single_action_space.n
    weights = _weights((inputs, UNITS, UNITS, int(outputs)), random)
    observation: NDArray[np.float32] = environments.reset(seed=0)[0]

    def step() -> int:
        nonlocal observation
        hidden = observation
        for weight in weights[:-1]:
            hidden = np.dot(hidden, weight)
            np.tanh(hidden, out=hidden)
        output = np.dot(hidden, weights[-1])
        if continuous:
            action = output + random.standard_normal(output.shape, np.float32)
        else:
            # The larger of two logits with Gumbel noise is a draw from their softmax.
            action = (output + random.gumbel(size=output.shape)).argmax(axis=1)
        observation = environments.step(action)[0]
        return ENVIRONMENTS

    return step


def training(env_id: str, minibatch: int) -> Callable[[], int]:
    """Returns a function that computes a gradient of both networks from one minibatch and returns its rows.

    The gradient of the loss by the outputs is given. The products and activations are those of direct gradient steps,
    which are the fastest that we know.
    """
    hidden = Network(hidden_sizes=(UNITS, UNITS), normalise_observations=False, normalise_returns=False)
    policy = fresh_policy(spec_of(env_id), network=hidden)
    network, random = FlatNetwork.of(policy, flatten(policy)), np.random.default_rng(0)
    assert network is not None
    features = random.standard_normal((minibatch, policy.observer.moments_shape[0]), np.float32)
    room, gradient = random.standard_normal(len(network.room()), np.float32), np.zeros(network.size, np.float32)

    def step() -> int:
        network.transpose()
        _products(network.layout, room, features, gradient)
        return minibatch

    return step


@numba.njit(nogil=True, error_model="numpy")
def _products(network, room, features, gradient):  # type: ignore[no-untyped-def]
    for begin in range(0, features.shape[0], network.block):
        part = features[begin : begin + network.block]
        passes.forward(network, room, part)
        passes.backward(network, room, part, gradient)


def _weights(widths: Sequence[int], random: np.random.Generator) -> list[NDArray[np.float32]]:
    return [
        random.standard_normal((before, after), np.float32) / np.float32(np.sqrt(before))
        for before, after in itertools.pairwise(widths)
    ]


def per_cpu_s(step: Callable[[], int], seconds: float) -> float:
    """Returns how much `step` does per CPU second, measured after a warm-up of a quarter of `seconds`."""
    # The first call compiles.
    step()
    done, begun = 0, 0.0
    started = time.process_time()
    while (now := time.process_time()) - started < 1.25 * seconds:
        if not begun and now - started >= 0.25 * seconds:
            done, begun = 0, now
        for _ in range(20):
            done += step()
    return done / (time.process_time() - begun)


def main() -> None:
    """Measures one part, and prints its pace as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env-id", choices=list(VECTOR_ENVIRONMENTS), required=True)
    parser.add_argument("--minibatch", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--part", choices=("collect", "train"))
    arguments = parser.parse_args()
    if arguments.part is None:
        json.dump(asdict(bound(arguments.env_id, arguments.minibatch, arguments.seconds)), sys.stdout)
        return
    step = (
        collecting(arguments.env_id) if arguments.part == "collect" else training(arguments.env_id, arguments.minibatch)
    )
    json.dump(per_cpu_s(step, arguments.seconds), sys.stdout)


if __name__ == "__main__":
    main()

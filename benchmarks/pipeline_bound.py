"""The pace that no pipeline of one collecting and one training process can exceed on two cores.

One process does what a collected step needs and nothing else: the environments, the policy's products and tanh, and a
draw. Another does what a gradient step needs and nothing else: the products and tanh of both networks, forwards and
backwards, into buffers that are ready. Both run at once, because they share caches and bandwidth. Paces are per CPU
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

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.like_for_like import variables
from benchmarks.observed import ROOT
from benchmarks.peers import equal_work
from benchmarks.peers.equal_work import ENVIRONMENTS, HIDDEN, VECTOR_ENVIRONMENTS

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
    weights = _weights((inputs, *HIDDEN, int(outputs)), random)
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

    The gradient of the loss by the outputs is given, as are all buffers.
    """
    torch.set_num_threads(1)
    environments = VECTOR_ENVIRONMENTS[env_id](num_envs=1)
    inputs = environments.single_observation_space.shape[0]
    space = environments.single_action_space
    outputs = int(space.shape[0] if space.shape else space.n)
    random = np.random.default_rng(0)
    rows = torch.from_numpy(random.standard_normal((minibatch, inputs), np.float32))
    networks = [_Network(_weights((inputs, *HIDDEN, width), random), rows, random) for width in (outputs, 1)]

    def step() -> int:
        for network in networks:
            network.gradient()
        return minibatch

    return step


class _Network:
    """The products and tanh of a network, forwards and backwards, for the same rows again and again."""

    def __init__(self, weights: Sequence[NDArray[np.float32]], rows: torch.Tensor, random: np.random.Generator) -> None:
        count = len(rows)
        self._weights = [torch.from_numpy(weight) for weight in weights]
        self._biases = [torch.zeros(weight.shape[1]) for weight in self._weights]
        self._layers = [rows, *(torch.empty(count, weight.shape[1]) for weight in self._weights)]
        self._errors = [torch.empty_like(layer) for layer in self._layers]
        self._errors[-1].copy_(torch.from_numpy(random.standard_normal(self._errors[-1].shape, np.float32)))
        self._gradients = [torch.empty_like(weight) for weight in self._weights]
        self._bias_gradients = [torch.empty_like(bias) for bias in self._biases]

    @torch.inference_mode()
    def gradient(self) -> None:
        last = len(self._weights) - 1
        for index, weight in enumerate(self._weights):
            after = self._layers[index + 1]
            torch.addmm(self._biases[index], self._layers[index], weight, out=after)
            if index < last:
                # NumPy's tanh is several times as fast as that of torch.
                np.tanh(after.numpy(), out=after.numpy())
        for index in range(last, -1, -1):
            torch.mm(self._layers[index].t(), self._errors[index + 1], out=self._gradients[index])
            torch.sum(self._errors[index + 1], 0, out=self._bias_gradients[index])
            if index:
                error, layer = self._errors[index], self._layers[index]
                torch.mm(self._errors[index + 1], self._weights[index].t(), out=error)
                # The derivative of tanh is 1 - tanh^2; the layer is not needed again.
                layer.mul_(layer).neg_().add_(1.0)
                error.mul_(layer)


def _weights(widths: Sequence[int], random: np.random.Generator) -> list[NDArray[np.float32]]:
    return [
        random.standard_normal((before, after), np.float32) / np.float32(np.sqrt(before))
        for before, after in itertools.pairwise(widths)
    ]


def per_cpu_s(step: Callable[[], int], seconds: float) -> float:
    """Returns how much `step` does per CPU second, measured after a warm-up of a quarter of `seconds`."""
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

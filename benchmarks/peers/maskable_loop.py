"""MaskablePPO of sb3-contrib on Colour Lines, with a choice of networks.

Rewards in training are shaped as for Penstock; evaluations count the score. The run ends at the first evaluation that
reaches the threshold. The networks:

- `linear`: convolutions of the board as features extractor, and sb3's linear layer to the 6,561 logits
- `kinds`: the same with convolutions that all colours share
- `moves`: Penstock's network for moves in place of the linear layer, which needs a class of policies of its own
"""

import argparse
import math
import sys
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.evaluation import evaluate_policy
from sb3_contrib.common.maskable.policies import MaskableMultiInputActorCriticPolicy
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecNormalize
from torch import Tensor, nn

import examples.colour_lines as registration
from benchmarks.peers.loop_run import Task
from benchmarks.peers.sb3_evaluations import Evaluations, linear

EPISODES = 100
ENVIRONMENTS = 32
THREADS = 1
SHAPING = 0.2
REACH = 4
WIDTH = 16
SETTINGS: dict[str, Any] = {
    "n_steps": 32,
    "batch_size": 256,
    "n_epochs": 2,
    "gamma": 0.5,
    "gae_lambda": 0.5,
    "clip_range": 0.3,
    "ent_coef": 0.0,
    "learning_rate": linear(3e-3),
}
"""Arguments of MaskablePPO."""


class Planes(BaseFeaturesExtractor):
    """One-hot codes of the board and of the announced colours, side by side."""

    def __init__(self, space: spaces.Dict) -> None:
        board = space["board"]
        assert isinstance(board, spaces.Box)
        self.codes, self.cells = int(board.high.max()) + 1, math.prod(board.shape)
        super().__init__(space, self.codes * self.cells + spaces.flatdim(space["next"]))

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        """Returns <float32>[N, features]. Stable-Baselines3 has encoded the announced colours."""
        codes = nn.functional.one_hot(observations["board"].long().flatten(1), self.codes)
        return torch.cat([codes.flatten(1).float(), observations["next"]], 1)


class Convolved(Planes):
    """Features of the cells after two convolutions, of all colours together."""

    def __init__(self, space: spaces.Dict) -> None:
        super().__init__(space)
        self.side = math.isqrt(self.cells)
        self.layers = nn.Sequential(
            nn.Conv2d(self.codes, 2 * WIDTH, 2 * REACH + 1, padding=REACH),
            nn.ReLU(),
            nn.Conv2d(2 * WIDTH, WIDTH, 1),
            nn.ReLU(),
            nn.Flatten(),
        )
        self._features_dim = WIDTH * self.cells + spaces.flatdim(space["next"])

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        """Returns <float32>[N, features]."""
        codes = nn.functional.one_hot(observations["board"].long(), self.codes).movedim(-1, 1).float()
        return torch.cat([self.layers(codes), observations["next"]], 1)


class Kinds(Planes):
    """Features of the cells after two convolutions with the same weights for every colour, in planes of colours."""

    def __init__(self, space: spaces.Dict) -> None:
        super().__init__(space)
        self.side = math.isqrt(self.cells)
        self.layers = _shared_convolutions(2)
        self._features_dim = 2 * (self.codes - 1) * self.cells + spaces.flatdim(space["next"])

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        """Returns <float32>[N, features]."""
        codes = nn.functional.one_hot(observations["board"].long(), self.codes).movedim(-1, 1).float()
        return torch.cat([self.layers(_by_kind(codes)).reshape(len(codes), -1), observations["next"]], 1)


class MoveLogits(nn.Module):
    """Penstock's network for moves, from the features of `Planes`: see penstock.algo.moves."""

    def __init__(self, codes: int, cells: int) -> None:
        super().__init__()
        self._codes, self._cells, self._side = codes, cells, math.isqrt(cells)
        self.layers = _shared_convolutions(2)

    def forward(self, features: Tensor) -> Tensor:
        """Returns the logits, <float32>[N, cells**2]."""
        codes = features[:, : self._codes * self._cells].reshape(-1, self._side, self._side, self._codes).movedim(-1, 1)
        own = codes[:, 1:].flatten(2)
        gain, loss = self.layers(_by_kind(codes)).reshape(len(codes), -1, 2, self._cells).unbind(2)
        logits: Tensor = own.transpose(1, 2) @ gain + (own * loss).sum(1).unsqueeze(2)
        return logits.flatten(1)


class MovesPolicy(MaskableMultiInputActorCriticPolicy):
    """The policy of MaskablePPO with `MoveLogits` in place of the linear layer."""

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        planes = self.features_extractor
        assert isinstance(planes, Planes)
        self.action_net = MoveLogits(planes.codes, planes.cells)
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)


NETWORKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "linear": ("MultiInputPolicy", {"features_extractor_class": Convolved, "net_arch": {"pi": [64], "vf": [64]}}),
    "kinds": ("MultiInputPolicy", {"features_extractor_class": Kinds, "net_arch": {"pi": [], "vf": [64]}}),
    "moves": (MovesPolicy, {"features_extractor_class": Planes, "net_arch": {"pi": [], "vf": [64, 64]}}),
}
"""Class and arguments of the policy, by the name of the network."""


class MaskedEvaluations(Evaluations):
    """Evaluations under the masks."""

    def _mean_return(self) -> float:
        mean, _ = evaluate_policy(self.model, self._envs, n_eval_episodes=EPISODES, deterministic=True)
        return float(np.mean(mean))


def _shared_convolutions(outputs: int) -> nn.Sequential:
    layers = nn.Sequential(
        nn.Conv2d(3, WIDTH, 2 * REACH + 1, padding=REACH),
        nn.ReLU(),
        nn.Conv2d(WIDTH, WIDTH, 1),
        nn.ReLU(),
        nn.Conv2d(WIDTH, outputs, 1),
    )
    for layer, gain in zip((layers[0], layers[2], layers[4]), (math.sqrt(2.0), math.sqrt(2.0), 0.1), strict=True):
        assert isinstance(layer, nn.Conv2d) and layer.bias is not None
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return layers


def _by_kind(codes: Tensor) -> Tensor:
    """Returns the planes of each colour: its balls, the empty cells, all cells; <float32>[N * colours, 3, H, W]."""
    empty, own = codes[:, :1].expand_as(codes[:, 1:]), codes[:, 1:]
    return torch.stack([own, empty, torch.ones_like(own)], 2).flatten(0, 1)


def main() -> None:
    """Trains, and prints the result."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--network", choices=NETWORKS, default="moves")
    chosen, sys.argv[1:] = parser.parse_known_args()
    task = Task.from_arguments()
    torch.set_num_threads(THREADS)
    gymnasium.spec(task.env_id)
    assert registration.ColourLines is not None
    policy, arguments = NETWORKS[chosen.network]
    envs = VecNormalize(
        make_vec_env(task.env_id, ENVIRONMENTS, task.seed, env_kwargs={"shaping": SHAPING}),
        norm_obs=False,
        gamma=SETTINGS["gamma"],
    )
    watched = make_vec_env(task.env_id, EPISODES, task.seed + 10**6)
    model = MaskablePPO(policy, envs, seed=task.seed, policy_kwargs={"activation_fn": nn.ReLU, **arguments}, **SETTINGS)
    evaluations = MaskedEvaluations(task, watched, stops_at_threshold=True)
    model.learn(task.total_steps, callback=evaluations)
    evaluations.course.outcome(
        f"{EPISODES} deterministic games",
        f"{ENVIRONMENTS} environments, {SETTINGS['n_steps']} steps each, {SETTINGS['n_epochs']} epochs, minibatches of"
        f" {SETTINGS['batch_size']}, network {chosen.network}, {THREADS} thread(s)",
    ).print_json()


if __name__ == "__main__":
    main()

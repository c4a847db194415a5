"""Vector environments that take and return tensors of torch, on a GPU or on the CPU, as simulators on a GPU do."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper

from penstock.acting.values.leaves import mapped, row_of
from penstock.acting.values.returned_values import array_of, column_of

if TYPE_CHECKING:
    _Wrapper = VectorWrapper[Any, Any, Any]
else:
    # Generic from Gymnasium 1.4 on.
    _Wrapper = VectorWrapper


def takes_tensors(env: VectorEnv[Any, Any, Any]) -> bool:
    """Returns whether a vector environment names the device of its tensors, as those of simulators on a GPU do."""
    device = getattr(env.unwrapped, "device", None)
    torch = _torch()
    return torch is not None and isinstance(device, (str, torch.device))


class TensorVector(_Wrapper):
    """A vector environment whose actions are tensors on its device. It returns tensors, which are copied when used.

    All environments share one seed. Final observations in `info["final_obs"]` become those of ended episodes alone, by
    index.
    """

    def reset(  # type: ignore[override]
        self, *, seed: Sequence[int], options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts new episodes. The first of the seeds, of at most 31 bits, is that of all environments."""
        return self.env.reset(seed=int(seed[0]) % 2**31, options=options)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Takes one step in each environment, with arrays of actions."""
        torch, device = _torch(), self.env.unwrapped.device  # type: ignore[attr-defined]
        batch = mapped(actions, lambda leaf: torch.from_numpy(np.ascontiguousarray(leaf)).to(device))
        observation, reward, terminated, truncated, infos = self.env.step(batch)
        if "final_obs" in infos:
            ended = np.flatnonzero(column_of(truncated, self.num_envs))
            final = mapped(infos["final_obs"], lambda leaf: array_of(leaf[ended]) if len(ended) else leaf)
            infos = infos | {"final_obs": {index: row_of(final, place) for place, index in enumerate(ended.tolist())}}
        return observation, reward, terminated, truncated, infos


def _torch() -> Any:
    """Returns the library if an environment has imported it, which an actor itself may not need."""
    return sys.modules.get("torch")

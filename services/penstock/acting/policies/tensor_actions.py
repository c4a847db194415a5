"""`ActionMap` in torch, on any device."""

import numpy as np
import torch
from torch import Tensor, nn

from penstock.acting.values.spaces import ActionMap, BoxMap, ChoiceMap
from penstock.algo.network import Network
from penstock.types.spaces import EnvironmentSpec


class TensorActionMap(nn.Module):
    """Maps a policy's actions to those of the environment, leaf by leaf, with the element types of its spaces."""

    def __init__(self, spec: EnvironmentSpec, network: Network) -> None:
        """Prepares the actions of policies of this architecture."""
        super().__init__()
        types = spec.action_types or ("",) * len(spec.action.leaves)
        maps = zip(ActionMap(spec.action, network).maps, types, strict=True)
        self._leaves = nn.ModuleList(_Leaf(mapped, name or mapped.dtype.name) for mapped, name in maps)

    def forward(self, action: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Maps <int64>[N], <int64>[N, k] or <float32>[N, A] of each leaf to [N, ...] in the shape of its space."""
        return tuple(convert(leaf) for convert, leaf in zip(self._leaves, action, strict=True))


class _Leaf(nn.Module):
    """The map of one leaf, with the element type of the environment's space."""

    def __init__(self, mapped: BoxMap | ChoiceMap, dtype: str) -> None:
        super().__init__()
        self._map, self._dtype = mapped, getattr(torch, dtype)
        names = ("start",) if isinstance(mapped, ChoiceMap) else ("scaled", "scale", "centre", "low", "high")
        for name in names:
            self.register_buffer(name, torch.from_numpy(np.array(getattr(mapped, name))))

    def forward(self, action: Tensor) -> Tensor:
        """Maps <int64>[N], <int64>[N, k] or <float32>[N, A] to [N, *shape]."""
        if isinstance(self._map, ChoiceMap):
            mapped = action + self.get_buffer("start")
        else:
            scaled, scale, centre = map(self.get_buffer, ("scaled", "scale", "centre"))
            unit = torch.where(scaled, torch.tanh(action), action) if self._map.squashes else action
            mapped = unit.to(scale.dtype) * scale + centre
            mapped = torch.where(mapped.isnan(), centre, mapped)
            mapped = torch.minimum(torch.maximum(mapped, self.get_buffer("low")), self.get_buffer("high"))
        return mapped.reshape(-1, *self._map.shape).to(self._dtype)

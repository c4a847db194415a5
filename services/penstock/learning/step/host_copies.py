"""Copies of tensors from the learner's device to the host, in one transfer.

Each transfer by itself would launch a copy and wait for it. `pack` puts all tensors into one block on the device, so
that one copy to page-locked memory and one wait suffice.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Block:
    """The memory of some tensors in one tensor.

    Attributes:
        content: <uint8>[bytes] the storages of the tensors, each of them once.
        offsets: Position of each storage, by its address.
    """

    content: Tensor
    offsets: Mapping[int, int]

    def find(self, tensor: Tensor, block: Tensor) -> Tensor:
        """Returns a packed tensor as a view of a copy of the content."""
        begin = self.offsets[tensor.untyped_storage().data_ptr()] // tensor.element_size()
        return block.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), begin + tensor.storage_offset())


def pack(tensors: Iterable[Tensor]) -> Block:
    """Copies the storages of tensors on one device into a block there, without waiting for the device."""
    storages: dict[int, tuple[int, Tensor]] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in storages:
            whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            storages[storage.data_ptr()] = tensor.element_size(), whole
    offsets, parts, end = {}, [], 0
    # The largest elements first, so that each element is aligned.
    for address, (_, whole) in sorted(storages.items(), key=lambda each: -each[1][0]):
        offsets[address] = end
        parts.append(whole)
        end += whole.numel()
    # The view of a type needs a whole number of its elements.
    parts.append(parts[0].new_zeros(-end % max(size for size, _ in storages.values())))
    return Block(torch.cat(parts), offsets)


class HostCopy:
    """Copy of tensors to the host as they are when it begins."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """Begins to copy detached tensors of one device, in the order of its current stream, and does not wait."""
        self._tensors = dict(tensors)
        self._block = pack(self._tensors.values())
        self._host, self._arrived = self._block.content, None
        device = self._host.device
        if device.type == "cuda":
            self._host = torch.empty(self._host.shape, dtype=torch.uint8, pin_memory=True)
            self._host.copy_(self._block.content, non_blocking=True)
            # Blocking, so that a wait does not use a core.
            self._arrived = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            self._arrived.record(torch.cuda.current_stream(device))

    def wait(self) -> dict[str, Tensor]:
        """Waits once for the device, and returns the copies, contiguous."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return {name: self._block.find(tensor, self._host).contiguous() for name, tensor in self._tensors.items()}


def on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns detached tensors of one device on the host, contiguous, after at most one wait.

    On a CPU, none is copied without need.
    """
    if next(iter(tensors.values())).device.type == "cpu":
        return {name: tensor.contiguous() for name, tensor in tensors.items()}
    return HostCopy(tensors).wait()

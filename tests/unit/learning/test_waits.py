"""How often the host waits for the device while it trains on a batch.

A GPU is not needed: on a CPU, modes of torch see the operations for which the host would wait if the tensors were on a
CUDA device. tests/gpu counts the waits that CUDA itself reports.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from penstock.algo import advantages
from penstock.algo.network import Network
from penstock.learning.step.batches import KnownRows, TrainingBatch, to_tensors
from penstock.learning.step.execution import FixedShapes
from penstock.learning.step.learner import Learner
from penstock.learning.step.torch_execution import TorchExecution
from penstock.types.replay import Batch
from penstock.types.spaces import MemoryKind
from tests.support.tiers import gate_of
from tests.support.training import training
from tests.support.training.training import CPU, SMALL, collect_batch, numbers_of, parameters_of

ATEN = torch.ops.aten
READS = {ATEN._local_scalar_dense, ATEN.item, ATEN.is_nonzero, ATEN.equal}
"""Operations that bring a value to the host."""
COUNTS = {
    *(ATEN.nonzero, ATEN.masked_select, ATEN._unique2, ATEN.unique_dim, ATEN.unique_consecutive),
    *(ATEN.repeat_interleave, ATEN.bincount),
}
"""Operations whose result has a size that only the device knows."""
INDEXING = {ATEN.index, ATEN.index_put, ATEN.index_put_, ATEN._index_put_impl_}
"""Operations that count the rows of a mask, if an index is one."""
TRANSFERS = {Tensor.cpu, Tensor.tolist, Tensor.numpy}
"""Functions that bring a whole tensor to the host, apart from those after the first one of the same values."""


class Waits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations, by name, for which the host would wait."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Sequence[Any] = (), options: dict[str, Any] | None = None
    ) -> Any:
        packet = function.overloadpacket
        masks = (
            each
            for each in (arguments[1] if packet in INDEXING else ())
            if each is not None and each.dtype == torch.bool
        )
        # Without a dimension, CUDA's median reads the number of its values.
        median = function is ATEN.nanmedian.default
        if packet in READS | COUNTS or median or any(True for _ in masks):
            self.found[str(packet)] += 1
        return function(*arguments, **(options or {}))


class Transfers(TorchFunctionMode):
    """Counts the transfers of whole tensors to the host, and hides from `Waits` what happens to their results there."""

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self._waits, self._on_host = waits, list[Tensor]()

    def _is_on_host(self, value: object) -> bool:
        return isinstance(value, Tensor) and any(
            value.untyped_storage().data_ptr() == each.untyped_storage().data_ptr() for each in self._on_host
        )

    def __torch_function__(
        self, function: Any, types: Any, arguments: Sequence[Any] = (), options: dict[str, Any] | None = None
    ) -> Any:
        if any(map(self._is_on_host, arguments)) or (
            arguments and isinstance(arguments[0], list | tuple) and all(map(self._is_on_host, arguments[0]))
        ):
            with self._paused():
                result = function(*arguments, **(options or {}))
            self._on_host += [each for each in _flat(result) if isinstance(each, Tensor)]
            return result
        result = function(*arguments, **(options or {}))
        if function in TRANSFERS:
            self._waits.found["transfer"] += 1
            # On a CPU the same tensor; a copy stands for the one on the host.
            result = result.clone() if isinstance(result, Tensor) else result
            self._on_host += [each for each in _flat(result) if isinstance(each, Tensor)]
        return result

    @contextmanager
    def _paused(self) -> Iterator[None]:
        before = self._waits.found.copy()
        yield
        self._waits.found = before


def _flat(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else [value]


@pytest.fixture(autouse=True)
def recursion_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computes V-trace as on a device, because the compiled loop of a CPU reads whole tensors."""
    monkeypatch.setattr(advantages, "_by_loop", advantages._by_scan)


def waits_of(action: Callable[[], object]) -> Counter[str]:
    """Returns the waits of an action, by operation."""
    with Waits() as waits, Transfers(waits):
        action()
    found: Counter[str] = waits.found
    return found


def for_a_device(batch: Batch) -> TrainingBatch:
    """Returns a batch as a learner on a GPU gets it, but on the CPU."""
    return dataclasses.replace(to_tensors(batch, CPU), rows=KnownRows.of(batch, CPU))


def make_learner(env_id: str = "CartPole-v1", **options: Any) -> Learner:
    """Returns a learner that takes gradient steps as on a device, where they are operations of torch."""
    return training.make_learner(env_id, execution="eager", **options)


WITH_MEMORY = {kind: dataclasses.replace(SMALL, memory=kind, memory_size=8) for kind in ("gru", "lstm")}
NETWORKS: dict[str, Network] = {
    "separate": SMALL,
    "shared": dataclasses.replace(SMALL, trunk="shared"),
    "raw": dataclasses.replace(SMALL, normalise_observations=False, normalise_returns=False),
    **WITH_MEMORY,
}


def test_the_count_sees_each_kind_of_wait() -> None:
    values = torch.arange(8.0)
    kinds: dict[str, Callable[[], object]] = {
        "mask": lambda: values[values > 3.0],
        "assigned mask": lambda: values.clone().index_put_((values > 3.0,), torch.ones(4)),
        "truth": lambda: bool(values.any()),
        "number": lambda: float(values.sum()),
        "index": lambda: values[values.argmax()],
        "median": lambda: values.nanmedian(),
        "cpu": lambda: values.cpu(),
        "list": lambda: values.tolist(),
    }
    assert {name: waits_of(action).total() for name, action in kinds.items()} == dict.fromkeys(kinds, 1)
    # The result of a transfer is on the host, where nothing waits.
    assert waits_of(lambda: [bool(each > 1.0) for each in torch.split((values * 2.0).cpu(), 1)]).total() == 1
    assert not waits_of(lambda: torch.where(values > 3.0, values, 0.0).flatten().nanmedian(0))


@pytest.mark.parametrize("network", gate_of(2, NETWORKS.values()), ids=NETWORKS)
def test_the_host_waits_once_for_a_batch(network: Network) -> None:
    learner = make_learner(network=network, epochs=3, minibatches=4)
    for _ in range(2):
        batch = for_a_device(collect_batch(fresh=4, network=network))
        assert waits_of(lambda batch=batch: learner.train(batch, 0.3)) == {"transfer": 1}  # type: ignore[misc]


def test_target_kl_adds_a_wait_for_each_epoch() -> None:
    learner = make_learner(epochs=3, minibatches=4, target_kl=1e3)
    batch = for_a_device(collect_batch(fresh=4))
    waits = waits_of(lambda: learner.train(batch, 0.0))
    assert waits["transfer"] == 1
    assert waits.total() == 1 + 3


def _with_fixed_shapes(learner: Learner) -> None:
    execution = learner._execution
    assert isinstance(execution, TorchExecution)
    execution.descent = FixedShapes(learner.step, minibatches=4, prepare=lambda take: take)


def test_minibatches_of_fixed_shapes_do_not_add_a_wait() -> None:
    learner = make_learner(epochs=3, minibatches=4)
    _with_fixed_shapes(learner)
    batch = for_a_device(collect_batch(fresh=4))
    assert waits_of(lambda: learner.train(batch, 0.0)) == {"transfer": 1}


def trained(batch: TrainingBatch, learner: Learner) -> tuple[list[Any], dict[str, Tensor]]:
    outcomes = [learner.train(batch, progress) for progress in (0.0, 0.5)]
    numbers = [
        (numbers_of(each), each.priorities, each.fresh_errors, each.fresh_steps, each.fresh_episodes, each.unsound_rows)
        for each in outcomes
    ]
    return numbers, parameters_of(learner)


def test_the_host_waits_once_for_a_batch_with_rows_of_burn_in_and_learns_the_same_from_it() -> None:
    network = WITH_MEMORY["gru"]
    collected = collect_batch(fresh=4, network=network, burn_in=4, windows=2)
    ours, theirs = (make_learner(network=network, burn_in_steps=4) for _ in range(2))
    batch = for_a_device(collected)
    assert waits_of(lambda: ours.train(batch, 0.0)) == {"transfer": 1}
    theirs.train(to_tensors(collected, CPU), 0.0)
    for name, tensor in parameters_of(ours).items():
        torch.testing.assert_close(tensor, parameters_of(theirs)[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("network", gate_of(2, NETWORKS.values()), ids=NETWORKS)
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_what_the_host_knows_changes_no_result(env_id: str, network: Network) -> None:
    collected = collect_batch(env_id, fresh=4, network=network, unroll_length=48)
    ways = (for_a_device(collected), to_tensors(collected, CPU))
    options: dict[str, Any] = {"network": network, "epochs": 2, "minibatches": 2}
    (ours, our_state), (theirs, their_state) = (trained(way, make_learner(env_id, **options)) for way in ways)
    for one, other in zip(ours, theirs, strict=True):
        for mine, known in zip(one, other, strict=True):
            np.testing.assert_allclose(mine, known, rtol=1e-3, atol=1e-5)
    for name, tensor in our_state.items():
        torch.testing.assert_close(tensor, their_state[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("memory", [None, "gru"])
def test_an_unsound_row_counts_in_nothing(memory: MemoryKind | None) -> None:
    network = SMALL if memory is None else WITH_MEMORY[memory]
    collected = collect_batch(fresh=4, network=network)
    collected.columns.column("reward")[1, 7] = np.nan
    ways = (for_a_device(collected), to_tensors(collected, CPU))
    options: dict[str, Any] = {"network": network, "epochs": 1, "minibatches": 1}
    (ours, our_state), (theirs, their_state) = (trained(way, make_learner(**options)) for way in ways)
    assert ours[0][-1] == theirs[0][-1] > 0
    for one, other in zip(ours, theirs, strict=True):
        for mine, known in zip(one, other, strict=True):
            np.testing.assert_allclose(mine, known, rtol=1e-3, atol=1e-5)
    for name, tensor in our_state.items():
        torch.testing.assert_close(tensor, their_state[name], rtol=1e-4, atol=1e-5)


def test_a_batch_without_a_sound_row_moves_no_parameter() -> None:
    learner = make_learner(epochs=1, minibatches=2)
    learner.train(for_a_device(collect_batch()), 0.0)
    before = learner.parameters.detach().clone()
    collected = collect_batch()
    collected.columns.column("reward")[:] = np.nan
    outcome = learner.train(for_a_device(collected), 0.0)
    assert torch.equal(learner.parameters, before)
    assert outcome.refused_steps == 0
    assert not outcome.priorities.any()
    learner.check_finite()


def test_values_that_must_be_left_out_of_the_moments_are_left_out() -> None:
    collected = collect_batch()
    collected.columns.column("discounted_return")[2, 3] = 1e30
    ways = (for_a_device(collected), to_tensors(collected, CPU))
    outcomes = [make_learner(epochs=1, minibatches=1).train(way, 0.0) for way in ways]
    assert outcomes[0].moments == outcomes[1].moments
    assert outcomes[0].moments.returns.left_out == 1


@pytest.mark.parametrize("execution", ["eager", "fixed shapes"])
@pytest.mark.parametrize("network", gate_of(1, NETWORKS.values()), ids=NETWORKS)
def test_a_batch_is_trained_on_a_device_without_values_of_which_one_tensor_is_read(
    network: Network, execution: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tensors on the device "meta" have no values, so that whatever else reads one, or mixes devices, is an error.
    read: list[torch.Size] = []

    def zeros(tensor: Tensor) -> Tensor:
        if tensor.device.type == "cpu":
            return tensor
        read.append(tensor.shape)
        return torch.zeros(tensor.shape, dtype=tensor.dtype)

    meta = torch.device("meta")
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device_type: False)
    learner = make_learner(network=network, device=meta, epochs=3, minibatches=4)
    if execution == "fixed shapes":
        _with_fixed_shapes(learner)
    batch = to_tensors(collect_batch(fresh=4, network=network), meta)
    monkeypatch.setattr(Tensor, "cpu", zeros)
    outcome = learner.train(batch, 0.0)
    assert len(read) == 1
    assert outcome.updates == 3 * 4
    assert outcome.priorities.shape == (6,)

import torch
from torch import Tensor

from penstock.learning.step.host_copies import HostCopy, on_host, pack
from tests.support.training.training import make_learner


def tensors_of_all_kinds() -> dict[str, Tensor]:
    flat = torch.arange(48, dtype=torch.float32)
    return {
        "flag": torch.tensor([True, False, True]),
        "first": flat[:16].view(4, 4),
        "second": flat[16:25].view(3, 3),
        "transposed": torch.arange(6, dtype=torch.float64).view(2, 3).t(),
        "count": torch.tensor(7.5, dtype=torch.float64),
        "bytes": torch.arange(5, dtype=torch.uint8),
        "halves": torch.arange(3, dtype=torch.bfloat16),
        "empty": torch.zeros(0, dtype=torch.int64),
    }


def test_a_copy_has_the_values_types_and_shapes_of_its_tensors_and_is_contiguous() -> None:
    tensors = tensors_of_all_kinds()
    copies = HostCopy(tensors).wait()
    assert copies.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert copies[name].dtype == tensor.dtype and copies[name].is_contiguous(), name
        assert torch.equal(copies[name], tensor), name


def test_a_copy_keeps_the_values_that_its_tensors_had_when_it_began() -> None:
    tensors = tensors_of_all_kinds()
    copy, before = HostCopy(tensors), {name: tensor.clone() for name, tensor in tensors.items()}
    for tensor in tensors.values():
        tensor.zero_()
    assert all(torch.equal(tensor, before[name]) for name, tensor in copy.wait().items())


def test_parameters_in_one_block_are_packed_once() -> None:
    learner = make_learner()
    views = [parameter.detach() for parameter in learner.policy.parameters()]
    assert len(views) > 5
    assert torch.equal(pack(views).content.view(torch.float32), learner.parameters.detach())


def test_on_a_cpu_contiguous_tensors_are_not_copied() -> None:
    tensors = tensors_of_all_kinds()
    for name, tensor in on_host(tensors).items():
        assert torch.equal(tensor, tensors[name]) and tensor.is_contiguous()
        assert (tensor.data_ptr() == tensors[name].data_ptr()) is (name != "transposed")

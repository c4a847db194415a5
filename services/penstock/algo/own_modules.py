"""Networks of users, which take the place of the encoders of an observation (`policy.module`)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from penstock.algo.encoders import Activation, Features, Observer, by_part
from penstock.errors import ConfigurationError
from penstock.machine import environment_names, foreign_errors
from penstock.machine.module_imports import import_for
from penstock.types.spaces import VECTOR_ENCODERS

_ROWS = 3
_TOLERANCE = 1e-4


class OwnModule(nn.Module):
    """A user's module, called with rows: the numbers of each leaf have the shape [N, *shape].

    Attributes:
        features: Width of the module's output.
    """

    def __init__(self, name: str, observer: Observer) -> None:
        """Makes the module for the parts of observations that an observer prepares.

        Raises `ConfigurationError` if there is no such module, or it does not return <float>[N, features] whose rows
        depend on their own inputs alone.
        """
        super().__init__()
        shapes = [part.shape for part in observer.preparations]
        self._dimensions = len(shapes[0])
        kind = class_of(name)
        try:
            self.module = kind(*shapes)
            self.features = self._check(name, made_up_rows(observer, _ROWS))
        except ConfigurationError:
            raise
        except foreign_errors.MISBEHAVIOUR as error:
            foreign_errors.let_ctrl_c_pass(error)
            taken = ", ".join(str(tuple(shape)) for shape in shapes)
            raise refusal(
                name, f"failed for a part of the shape {taken}: {foreign_errors.explain(error)}", "correct it"
            ) from error

    @property
    def has_auxiliary_loss(self) -> bool:
        """Whether the user's module has a method `auxiliary_loss`."""
        return callable(getattr(self.module, "auxiliary_loss", None))

    def forward(self, prepared: Features) -> Tensor:
        """Returns <float>[..., features] for prepared leaves, [..., *shape]."""
        leading, rows = rows_of(prepared, self._dimensions)
        features: Tensor = self.module(*rows)
        return features.reshape(*leading, features.shape[-1])

    def _check(self, name: str, rows: Sequence[Tensor]) -> int:
        with torch.no_grad():
            first, again = self.module(*rows), self.module(*rows)
            alone = self.module(*(row[:1] for row in rows))
        if not isinstance(first, Tensor) or first.ndim != 2 or len(first) != _ROWS or not first.is_floating_point():
            found = list(first.shape) if isinstance(first, Tensor) else type(first).__name__
            raise refusal(name, f"returned {found} for {_ROWS} rows", f"return a tensor of floats, [{_ROWS}, features]")
        check_same(name, "features", [first], again=[again], alone=[alone])
        return int(first.shape[1])


def own_layers(name: str, observer: Observer, activation: Activation) -> tuple[list[nn.Module], int]:
    """Returns a user's module after an observer, and the number of its features. It chooses its own activations."""
    module = OwnModule(name, observer)
    return [module], module.features


def rows_of(prepared: Features, dimensions: int) -> tuple[torch.Size, list[Tensor]]:
    """Returns the leading dimensions of prepared parts, [..., *shape], and the parts as rows, [N, *shape].

    The shape of the first part has this number of dimensions.
    """
    parts = by_part(prepared)
    leading = parts[0].shape[: parts[0].ndim - dimensions]
    return leading, [part.flatten(0, len(leading) - 1) if len(leading) > 1 else part for part in parts]


def check_same(
    name: str, what: str, first: Sequence[Tensor], *, again: Sequence[Tensor], alone: Sequence[Tensor]
) -> None:
    """Raises `ConfigurationError` if results for rows, [N, ...] each, depend on more than the rows.

    `again` are the results of a second call with the same rows, and `alone` those of a call with the first row.
    """
    for others, count, how in (again, None, "from call to call"), (alone, 1, "with the other rows"):
        for one, other in zip(first, others, strict=True):
            if not torch.allclose(other, one[:count], rtol=_TOLERANCE, atol=_TOLERANCE):
                raise refusal(
                    name,
                    f"returns other {what} for the same row {how}",
                    "leave out dropout and batch normalisation, with which ratios of probabilities are wrong",
                )


def made_up_rows(observer: Observer, count: int) -> list[Tensor]:
    """Returns random numbers as an observer prepares them, [count, *shape] for each part of an observation."""
    # A generator of its own, so that the other layers are initialised as without a module.
    draw = torch.Generator().manual_seed(0)
    return [
        torch.rand(count, *part.shape, generator=draw).to(torch.int64 if encoder in VECTOR_ENCODERS else torch.float32)
        for part, encoder in zip(observer.preparations, observer.encoders, strict=True)
    ]


def class_of(name: str) -> type[nn.Module]:
    """Returns the class that `policy.module` names. Raises `ConfigurationError` if there is none."""
    found = import_for("policy.module", name, kind="class", examples="my_package.my_module:MyNet or file.py:MyNet")
    if found is None:
        raise refusal(name, f"names no class of {environment_names.split(name)[0]}", "correct the part after the colon")
    if not isinstance(found, type) or not issubclass(found, nn.Module):
        raise refusal(name, "is not a subclass of torch.nn.Module", "name a class that is one")
    return found


def shown(value: object) -> str:
    """Returns a description of a result that can't be used."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return f"a value of type {type(value).__name__}"


def refusal(name: str, fault: str, remedy: str) -> ConfigurationError:
    """Returns the refusal of a module that can't be used."""
    return ConfigurationError(f"policy.module {name!r} {fault}; {remedy}")

"""Encoders of the parts of an observation: from raw values to the features of the first hidden layer.

Encoding has two steps. `Preparation` converts raw values to numbers and has no parameters, so that policy and value can
share its result. `encoder_layers` are the learned layers after it, whose outputs are concatenated in the order of the
leaves.
"""

import math
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from penstock.algo.network import MAX_OBSERVATION
from penstock.algo.normalisation import RunningMoments
from penstock.algo.spaces import MOST_PLANES, alternatives, encoders_of
from penstock.types.spaces import (
    VECTOR_ENCODERS,
    Encoder,
    EnvironmentSpec,
    MultiBinarySpace,
    Space,
    channels_first,
    has_channels_last,
)

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


Activation = Callable[[], nn.Module]

Features = Tensor | tuple[Tensor, ...]
"""One tensor, or one per leaf of the observation before encoders with parameters."""

_PIXEL = 1.0 / 255.0
"""Scale of images."""
_IMAGE_LAYERS = ((32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0))
"""Channels, kernel, stride and padding of each layer for images (Mnih et al. 2015)."""
_BOARD_LAYERS = ((32, 3, 1, 1), (64, 3, 1, 1))
"""The same for boards, which keep their height and width."""
_HALVING = (64, 3, 2, 1)
"""Further layer for boards, repeated until height and width are at most `_LARGEST_BOARD`."""
_LARGEST_BOARD = 12
_EMBEDDING = 16
"""Width of the learned vector of each integer."""
_TOKEN, _SENTENCE = 32, 64
"""Width of the learned vector of each token, and of the state after a row of tokens."""


def initialised(layer: Layer, gain: float) -> Layer:
    """Initialises a layer orthogonally (Saxe et al. 2014), the standard for PPO, with biases of 0; returns it."""
    assert layer.bias is not None
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def by_part(features: Features) -> tuple[Tensor, ...]:
    """Returns a tensor per part of the observation."""
    return (features,) if isinstance(features, Tensor) else features


def of_parts(parts: tuple[Tensor, ...]) -> Features:
    """Returns what encoders take for these parts of the observation."""
    return parts[0] if len(parts) == 1 else parts


class Preparation(nn.Module):
    """Conversion of raw values of one leaf, [..., *shape], to the numbers that its layers take.

    Attributes:
        shape: Shape of the result, without the leading dimensions.
        standardised: Whether the result is to be standardised.
    """

    low: Tensor | None
    offset: Tensor | None
    most: Tensor | None

    def __init__(self, space: Space, encoder: Encoder) -> None:
        super().__init__()
        self._raw = space.observation_array[1]
        self._encoder, self._channels_last = encoder, has_channels_last(self._raw)
        size, integers = math.prod(self._raw), alternatives(space)
        planes = encoder == "board" and integers is not None and int(integers[1].max()) <= MOST_PLANES
        vectors = encoder in VECTOR_ENCODERS
        coded = integers is not None and (encoder == "one_hot" or vectors or planes)
        self.standardised = not coded and encoder != "image" and not isinstance(space, MultiBinarySpace)
        low = offset = most = None
        if coded:
            assert integers is not None
            low, most = torch.from_numpy(integers[0]), torch.from_numpy(integers[1] - 1)
            offset = torch.from_numpy(np.cumsum(integers[1]) - integers[1])
            shared = encoder in ("token_mean", "token_gru")
            self.codes = int(integers[1][0] if shared else integers[1].sum())
            offset = torch.zeros_like(low) if shared else offset
            self._planes = int(integers[1].max()) if planes else 0
        self._coded = coded
        for name, values in (("low", low), ("offset", offset), ("most", most)):
            self.register_buffer(name, values, persistent=False)
        self.shape: tuple[int, ...] = (size,)
        if encoder == "one_hot":
            self.shape = (self.codes,)
        elif encoder == "image":
            # Actors convert images to channels first.
            self.shape = self._raw if len(self._raw) == 3 else (1, *self._raw)
        elif encoder == "board":
            channels, *area = channels_first(self._raw)
            self.shape = (channels * (self._planes if planes else 1), *area)
        self._is_unchanged = encoder == "flat" and not coded and self.shape == self._raw

    def prepare(self, values: Tensor) -> Tensor:
        """Returns <float32>[..., *self.shape], or the numbers of learned vectors, <int64>[..., size]."""
        if self._is_unchanged:
            return values.float()
        leading = values.shape[: values.ndim - len(self._raw)]
        if self._encoder == "image":
            images = values.reshape(*leading, *self.shape)
            return scaled_images(images) if images.is_cuda else images * _PIXEL
        if self._coded:
            return self._codes(values.reshape(*leading, -1).long(), leading)
        numbers = values.float()
        return self._arranged(numbers) if self._encoder == "board" else numbers.reshape(*leading, *self.shape)

    def planes_of(self, prepared: Tensor) -> Tensor:
        """Returns the planes of a prepared board of integers, one per alternative, <float32>[..., planes, H, W].

        The leaf is a matrix with the same alternatives in each cell, encoded as `board` or `one_hot`.
        """
        if self._encoder == "board":
            return prepared
        return prepared.reshape(*prepared.shape[:-1], *self._raw, -1).movedim(-1, -3)

    def _codes(self, values: Tensor, leading: torch.Size) -> Tensor:
        assert self.low is not None and self.offset is not None and self.most is not None
        # Clamped, because an index out of range would end a CUDA process.
        codes = torch.minimum((values - self.low).clamp(min=0), self.most)
        if self._encoder in VECTOR_ENCODERS:
            return codes + self.offset
        if self._encoder == "one_hot":
            hot = torch.zeros(*leading, self.codes, device=values.device)
            return hot.scatter(-1, codes + self.offset, 1.0)
        planes = torch.zeros(*codes.shape, self._planes, device=values.device).scatter(-1, codes.unsqueeze(-1), 1.0)
        board = self._arranged(planes.reshape(*leading, *self._raw, self._planes), trailing=1)
        # [..., C, H, W, planes] to [..., C planes, H, W]
        return board.movedim(-1, -3).flatten(-4, -3)

    def _arranged(self, values: Tensor, trailing: int = 0) -> Tensor:
        """Returns a board, [..., *raw] with `trailing` dimensions after it, with its channels first."""
        last = -1 - trailing
        if len(self._raw) == 2:
            return values.unsqueeze(last - 2)
        return values.movedim(last, last - 2) if self._channels_last else values


def scaled_images(images: Tensor) -> Tensor:
    """Scales images, <uint8>[..., C, H, W] with leading dimensions, to [0, 1] in one pass, as convolutions read them.

    The result is in the precision of autocast, otherwise in float32, and in channels-last order. Three passes, one for
    each of these, would move ten times the bytes of a frame.
    """
    rows, device = images.flatten(0, -4), images.device
    dtype = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else torch.float32
    scaled = torch.empty(rows.shape, dtype=dtype, device=device, memory_format=torch.channels_last)
    return torch.mul(rows, _PIXEL, out=scaled).view(images.shape)


class Observer(nn.Module):
    """Conversion of observations to the inputs of the encoder layers. It has no parameters.

    The running moments, which the policy owns, have one element per standardised number, over all leaves.

    Attributes:
        preparations: The preparation of each leaf.
    """

    def __init__(self, spec: EnvironmentSpec, encoders: Mapping[str, Encoder], *, standardise: bool) -> None:
        """Raises `ConfigurationError` as `encoders_of`."""
        super().__init__()
        self.encoders = encoders_of(spec, encoders)
        leaves = zip(spec.observation.spaces, self.encoders, strict=True)
        self.preparations = tuple(Preparation(space, encoder) for space, encoder in leaves)
        # Registers their buffers. A call of a registered module would cost as much as a small operation.
        self.parts = nn.ModuleList(self.preparations)
        self._numbers = [position for position, part in enumerate(self.preparations) if part.standardised]
        self._sizes = [math.prod(self.preparations[position].shape) for position in self._numbers]
        self._standardise = standardise and bool(self._numbers)

    @property
    def moments_shape(self) -> tuple[int, ...]:
        """Shape of the running moments; () without numbers to standardise."""
        return (sum(self._sizes),) if self._sizes else ()

    def prepare(self, observation: tuple[Tensor, ...], moments: RunningMoments) -> tuple[Tensor, ...]:
        """Returns the inputs of the encoder layers for raw observations, one tensor per leaf."""
        prepared = [part.prepare(values) for part, values in zip(self.preparations, observation, strict=True)]
        if not self._standardise:
            for position in self._numbers:
                prepared[position] = prepared[position].clamp(-MAX_OBSERVATION, MAX_OBSERVATION)
            return tuple(prepared)
        standardised = moments.standardise(self._joined(prepared))
        # A single leaf gets the tensor itself, without another operation.
        each = (standardised,) if len(self._sizes) == 1 else torch.split(standardised, self._sizes, -1)
        for position, values in zip(self._numbers, each, strict=True):
            prepared[position] = values.reshape(prepared[position].shape)
        return tuple(prepared)

    def numbers(self, observation: tuple[Tensor, ...]) -> Tensor | None:
        """Returns the numbers to standardise of raw observations, <float32>[..., n]; None if there are none."""
        if not self._standardise:
            return None
        return self._joined([part.prepare(each) for part, each in zip(self.preparations, observation, strict=True)])

    def _joined(self, prepared: list[Tensor]) -> Tensor:
        rows = [prepared[position].flatten(-len(self.preparations[position].shape)) for position in self._numbers]
        return rows[0] if len(rows) == 1 else torch.cat(rows, -1)


class Convolutions(nn.Sequential):
    """Convolutional layers from images or boards, <float32>[..., C, H, W], to features, <float32>[..., F]."""

    def __init__(
        self, shape: tuple[int, ...], layers: tuple[tuple[int, int, int, int], ...], activation: Activation
    ) -> None:
        """Each layer has channels, kernel, stride and padding."""
        channels, *size = shape
        modules: list[nn.Module] = []
        for width, kernel, stride, padding in layers:
            convolution = nn.Conv2d(channels, width, kernel, stride, padding)
            modules += [initialised(convolution, math.sqrt(2.0)), activation()]
            channels, size = width, [(side + 2 * padding - kernel) // stride + 1 for side in size]
        super().__init__(*modules, nn.Flatten())
        self.features = channels * math.prod(size)

    def forward(self, images: Tensor) -> Tensor:
        """Convolves images with any number of leading dimensions."""
        # In channels-last order a CPU convolves a third more images per second.
        rows = images.flatten(0, -4).contiguous(memory_format=torch.channels_last)
        features: Tensor = super().forward(rows)  # type: ignore[no-untyped-call]
        return features.view(*images.shape[:-3], self.features)


class Embeddings(nn.Embedding):
    """Learned vectors of integers: from their numbers, <int64>[..., k], to features, <float32>[..., k * width]."""

    def __init__(self, codes: int, integers: int) -> None:
        super().__init__(codes, _EMBEDDING)
        self.features = integers * _EMBEDDING

    def forward(self, numbers: Tensor) -> Tensor:
        """Looks up and concatenates the vectors."""
        return super().forward(numbers).flatten(-2)


class Tokens(nn.Module):
    """Rows of tokens, such as words: from their numbers, <int64>[..., L], to features, <float32>[..., F].

    All places of a row share the vectors of tokens. Number 0 is no token, and ends the row.
    """

    def __init__(self, codes: int, *, in_order: bool) -> None:
        """The features are the mean of the tokens' vectors, or (`in_order`) the state of a GRU after the last token."""
        super().__init__()
        self.vectors = nn.Embedding(codes, _TOKEN)
        self.reader = nn.GRU(_TOKEN, _SENTENCE, batch_first=True) if in_order else None
        self.features = _SENTENCE if in_order else _TOKEN

    def forward(self, numbers: Tensor) -> Tensor:
        """Reads the rows, with any number of leading dimensions. A row without tokens has features of 0."""
        rows = numbers.flatten(0, -2)
        present = (rows == 0).cumsum(-1) == 0
        vectors = self.vectors(rows) * present.unsqueeze(-1)
        count = present.sum(-1, keepdim=True)
        if self.reader is None:
            features: Tensor = vectors.sum(-2) / count.clamp(min=1)
        else:
            last = (count - 1).clamp(min=0).unsqueeze(-1).expand(-1, 1, self.features)
            features = self.reader(vectors)[0].gather(1, last).squeeze(1) * (count > 0)
        return features.view(*numbers.shape[:-1], self.features)


class Concatenated(nn.Module):
    """Features of several leaves side by side."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.leaves = nn.ModuleList(layers)

    def forward(self, prepared: tuple[Tensor, ...]) -> Tensor:
        """Returns <float32>[..., F] from one prepared tensor per leaf."""
        return torch.cat([layer(values) for layer, values in zip(self.leaves, prepared, strict=True)], -1)


def encoder_layers(observer: Observer, activation: Activation) -> tuple[list[nn.Module], int]:
    """Returns the learned layers after an observer, and the number of their features.

    They take the prepared tensors of all leaves, or the only leaf's tensor. Without parameters there are no layers.
    """
    layers, features = [], 0
    for part, encoder in zip(observer.preparations, observer.encoders, strict=True):
        layer, width = _layer(part, encoder, activation)
        layers.append(layer)
        features += width
    if len(layers) > 1:
        return [Concatenated(layers)], features
    return ([] if isinstance(layers[0], nn.Identity) else layers), features


def _layer(part: Preparation, encoder: Encoder, activation: Activation) -> tuple[nn.Module, int]:
    if encoder == "image":
        convolutions = Convolutions(part.shape, _IMAGE_LAYERS, activation)
        return convolutions, convolutions.features
    if encoder == "board":
        height, width = part.shape[1:]
        halvings = max(0, math.ceil(math.log2(max(height, width) / _LARGEST_BOARD)))
        board = Convolutions(part.shape, (*_BOARD_LAYERS[:1], *[_HALVING] * halvings, *_BOARD_LAYERS[1:]), activation)
        return board, board.features
    if encoder == "embedding":
        embeddings = Embeddings(part.codes, part.shape[0])
        return embeddings, embeddings.features
    if encoder in ("token_mean", "token_gru"):
        tokens = Tokens(part.codes, in_order=encoder == "token_gru")
        return tokens, tokens.features
    return nn.Identity(), part.shape[0]

"""Random streams that are functions of (run seed, environment, incarnation, step).

A counter-based generator has no state to keep or to share. An environment's noise does not depend on the process that
steps it, no two environments share a stream, and an actor that returns in a new incarnation repeats no noise.
"""

import enum
from dataclasses import dataclass
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from penstock.algo.network import Noise, NoiseKind


def _word(value: int) -> NDArray[np.uint64]:
    """Returns a number as an array <uint64>[], with which an operation takes a third of the time of a scalar."""
    return np.array(value, np.uint64)


_MULTIPLIERS = (_word(0xD2511F53), _word(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = _word(0xFFFFFFFF)
_HALF = _word(32)
_ROUNDS = 10


class Purpose(enum.IntEnum):
    """The use of a stream. Streams for different purposes are independent."""

    TRAINING = 0
    EVALUATION = 1


def _philox(counters: list[NDArray[np.uint64]], seed: int) -> list[NDArray[np.uint64]]:
    """Computes Philox4x32-10 (Salmon et al. 2011) over arrays: four 32-bit words per counter of four words."""
    low, high = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    first, second, third, fourth = counters
    for _ in range(_ROUNDS):
        left, right = first * _MULTIPLIERS[0], third * _MULTIPLIERS[1]
        first, second = right >> _HALF ^ second ^ _word(low), right & _LOW
        third, fourth = left >> _HALF ^ fourth ^ _word(high), left & _LOW
        low, high = low + _WEYL[0] & 0xFFFFFFFF, high + _WEYL[1] & 0xFFFFFFFF
    return [first, second, third, fourth]


@dataclass(frozen=True, slots=True)
class Streams:
    """Random streams of N environments.

    `first_step` is the number of steps, below 2^48, that each environment has taken in this incarnation.

    Attributes:
        seed: Seed of the run, 64 bits.
        incarnation: Incarnation of the actor, below 2^32.
        environments: <uint32>[N] run-wide numbers of the environments.
    """

    seed: int
    incarnation: int
    environments: NDArray[np.uint32]

    def draw(self, noise: tuple[Noise, ...], first_step: int, steps: int) -> NDArray[np.float32]:
        """Returns the random numbers from which a policy samples T actions, <float32>[N, T, total size].

        The numbers of each part of `noise` are side by side, and come from uniform numbers of its own.
        """
        widths = [_uniforms_of(part) for part in noise]
        uniforms = np.split(self.uniforms(first_step, steps, sum(widths)), np.cumsum(widths)[:-1], axis=-1)
        drawn = [_transformed(part, numbers) for part, numbers in zip(noise, uniforms, strict=True)]
        return drawn[0] if len(drawn) == 1 else np.concatenate(drawn, axis=-1)

    def uniforms(self, first_step: int, steps: int, size: int) -> NDArray[np.float32]:
        """Returns uniform noise in [0, 1) for T steps, <float32>[N, T, size]."""
        blocks = -(-size // 4)
        step = np.arange(first_step, first_step + steps, dtype=np.uint64)[None, :, None]
        lane = np.arange(blocks, dtype=np.uint64)[None, None, :]
        environment = self.environments.astype(np.uint64)[:, None, None]
        # The parts of a counter are broadcast where the rounds mix them, which saves more than one round of ten.
        counters = [step & _LOW, lane | step >> _HALF << _word(16), environment, _word(self.incarnation)]
        shape = (environment.size, steps, blocks)
        used = min(size, 4)
        uniform = np.empty((*shape, used), np.float32)
        for index, words in enumerate(_philox(counters, self.seed)[:used]):
            # A float32 has 24 significant bits; more could round up to 1.
            uniform[..., index] = words >> _word(8)
        np.multiply(uniform, np.float32(2.0**-24), out=uniform)
        return uniform.reshape(*shape[:2], blocks * used)[..., :size]

    def reset_seeds(self, purpose: Purpose = Purpose.TRAINING, failures: int = 0) -> list[int]:
        """Returns a seed for each environment's generator, from which it draws its resets and its dynamics.

        Each failure in an incarnation leads to new seeds, because the environments are reset after it.
        """
        again = [failures] if failures else []
        low, high = self.seed & 0xFFFFFFFF, self.seed >> 32
        sequences = (
            np.random.SeedSequence([low, high, int(environment), self.incarnation, int(purpose), *again])
            for environment in self.environments
        )
        return [int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(2)) for sequence in sequences]


def _uniforms_of(noise: Noise) -> int:
    """Returns the number of uniform numbers from which the numbers of one action are computed."""
    match noise.kind:
        case NoiseKind.UNIFORM:
            return noise.size
        case NoiseKind.NORMAL:
            return 2 * -(-noise.size // 2)
        case _:
            assert_never(noise.kind)


def _transformed(noise: Noise, uniforms: NDArray[np.float32]) -> NDArray[np.float32]:
    """Converts uniform numbers in [0, 1), <float32>[..., _uniforms_of(noise)], to <float32>[..., noise.size]."""
    match noise.kind:
        case NoiseKind.UNIFORM:
            return uniforms
        case NoiseKind.NORMAL:
            return _normals(uniforms, noise.size)
        case _:
            assert_never(noise.kind)


def _normals(uniforms: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """Returns standard normal numbers, <float32>[..., size], by Box and Muller (1958)."""
    pairs = uniforms.shape[-1] // 2
    # 1 - u is in (0, 1], where the logarithm is finite.
    radius = np.sqrt(-2.0 * np.log1p(-uniforms[..., :pairs]))
    angle = np.float32(2.0 * np.pi) * uniforms[..., pairs:]
    normal = np.empty((*uniforms.shape[:-1], size), np.float32)
    np.multiply(radius, np.cos(angle), out=normal[..., :pairs])
    # With an odd size, the last sine is not used.
    sines = size - pairs
    np.multiply(radius[..., :sines], np.sin(angle[..., :sines]), out=normal[..., pairs:])
    return normal

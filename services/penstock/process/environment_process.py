"""The state of a process that an actor, an evaluator and the check set up before they import environments: arguments
and random numbers.

Code of users may read `sys.argv` when it is imported, and may draw from generators that belong to the whole process.
"""

import ctypes
import functools
import importlib.util
import json
import os
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType

import numpy as np

from penstock.machine.environment_names import is_file, split

ARGUMENTS_VARIABLE = "PENSTOCK_ARGUMENTS"
"""Variable in which a launcher sends the `sys.argv` of its caller, as a JSON list."""

_TORCH = "torch"


@contextmanager
def arguments_for(env_id: str) -> Iterator[None]:
    """Replaces the options of a command of Penstock in `sys.argv`, which an environment must not read, in the block."""
    before, sys.argv = sys.argv, _without_options(env_id)
    try:
        yield
    finally:
        sys.argv = before


def set_arguments(env_id: str) -> None:
    """Sets `sys.argv` to the arguments of the launcher's caller, or without a launcher to the environment's file."""
    sent = os.environ.pop(ARGUMENTS_VARIABLE, "")
    sys.argv = json.loads(sent) if sent else _without_options(env_id)


def seed_generators(*key: int | str) -> None:
    """Seeds the generators of the whole process: `random`, `numpy.random`, torch's, and C's `rand`.

    Equal keys give equal numbers, and different keys different ones. A process that is forked later has numbers of its
    own, in the order of the forks. Torch is seeded when it is first imported, if it is not yet: it takes a second and
    200 MB.
    """
    _forks().key, _forks().count = key, 0
    words = [word for part in key for word in _words(part)]
    python, numpy, torch, c = (int(seed) for seed in np.random.SeedSequence(words).generate_state(4, np.uint32))
    random.seed(python)
    np.random.seed(numpy)
    ctypes.CDLL(None).srand(c)
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _SeedsTorch)]
    if (loaded := sys.modules.get(_TORCH)) is not None:
        loaded.manual_seed(torch)
    else:
        sys.meta_path.insert(0, _SeedsTorch(torch))


class _Forks:
    """Seeds forked processes. They would repeat the numbers of this process, except the numbers of `random`.

    Attributes:
        key: Key of the seeds of this process.
        count: Number of forks with these seeds.
    """

    def __init__(self) -> None:
        self.key: tuple[int | str, ...] = ()
        self.count = 0
        os.register_at_fork(before=self._count, after_in_child=self._seed)

    def _count(self) -> None:
        self.count += 1

    def _seed(self) -> None:
        seed_generators(*self.key, "fork", self.count)


_forks = functools.cache(_Forks)
"""Returns the hooks of this process, which can be registered once only."""


def _without_options(env_id: str) -> list[str]:
    place = split(env_id)[0]
    return [place if is_file(place) else "penstock"]


def _words(part: int | str) -> Sequence[int]:
    if isinstance(part, str):
        encoded = part.encode(errors="surrogateescape")
        return [len(encoded), *encoded]
    return [part & 0xFFFFFFFF, part >> 32 & 0xFFFFFFFF]


class _SeedsTorch:
    """Finder of modules that finds torch alone, once, and seeds it after its import."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        """Returns the spec of torch with a loader that also seeds it; None for other modules."""
        if name != _TORCH:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_seed(module: ModuleType) -> None:
            execute(module)
            module.manual_seed(self._seed)

        spec.loader.exec_module = execute_and_seed  # type: ignore[method-assign]
        return spec

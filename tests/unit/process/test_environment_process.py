import ast
import ctypes
import random
import subprocess
import sys

import numpy as np
import pytest
import torch

from penstock.process.environment_process import (
    ARGUMENTS_VARIABLE,
    arguments_for,
    seed_generators,
    set_arguments,
)


def drawn() -> list[float]:
    """Returns a number of each generator of the process."""
    return [random.random(), np.random.rand(), torch.rand(1).item(), float(ctypes.CDLL(None).rand())]


def drawn_after(*key: int | str) -> list[float]:
    seed_generators(*key)
    return drawn()


def test_equal_keys_give_equal_numbers_of_every_generator() -> None:
    assert drawn_after(2**40, "actor", "actor-0") == drawn_after(2**40, "actor", "actor-0")


@pytest.mark.parametrize(
    "other",
    [(2, 0, 1), (1, 1, 1), (1, 0, 2), (1 + 2**32, 0, 1), ("1", 0, 1)],
    ids=["seed", "slot", "next", "high", "text"],
)
def test_another_key_gives_other_numbers_of_every_generator(other: tuple[int | str, ...]) -> None:
    pairs = zip(drawn_after(1, 0, 1), drawn_after(*other), strict=True)
    assert all(first != second for first, second in pairs)


def test_torch_is_not_imported_to_be_seeded_and_is_seeded_when_it_is_imported_later() -> None:
    lines = (
        "import sys; from penstock.process.environment_process import seed_generators",
        "seed_generators(7); seed_generators(1, 'actor')",
        "assert 'torch' not in sys.modules",
        "import torch; print(torch.rand(1).item())",
    )
    ended = subprocess.run([sys.executable, "-Pc", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert float(ended.stdout) == drawn_after(1, "actor")[2]


def test_an_environment_finds_the_arguments_that_the_launcher_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["penstock", "actor", "--config", "x"])
    monkeypatch.setenv(ARGUMENTS_VARIABLE, '["train.py", "--level", "caf\\u00e9"]')
    set_arguments("/some/train.py:Env")
    assert sys.argv == ["train.py", "--level", "caf\u00e9"]


@pytest.mark.parametrize(
    ("env_id", "found"), [("/some/train.py:Env", ["/some/train.py"]), ("CartPole-v1", ["penstock"])]
)
def test_an_environment_does_not_find_the_options_of_a_command(
    env_id: str, found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["penstock", "actor", "--config", "x"]
    monkeypatch.setattr(sys, "argv", given)
    with arguments_for(env_id):
        assert sys.argv == found
    assert sys.argv == given
    set_arguments(env_id)
    assert sys.argv == found


FORKED = """
import ctypes, multiprocessing, random, sys
import numpy as np, torch
from penstock.process.environment_process import seed_generators

def drawn(_=None):
    return [random.random(), np.random.rand(), torch.rand(1).item(), float(ctypes.CDLL(None).rand())]

def with_a_child_of_its_own(number):
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return [drawn(), pool.apply(drawn)]

if __name__ == "__main__":
    seed_generators(int(sys.argv[1]), "actor")
    with multiprocessing.get_context("fork").Pool(1) as one, multiprocessing.get_context("fork").Pool(1) as two:
        print([drawn(), one.apply(drawn), two.apply(drawn)])
    found = []
    for number in range(2):
        reading, writing = multiprocessing.Pipe(duplex=False)
        child = multiprocessing.get_context("fork").Process(
            target=lambda: writing.send(with_a_child_of_its_own(number))
        )
        child.start()
        found += reading.recv()
        child.join()
    print(found)
"""


@pytest.mark.nightly
def test_a_forked_process_draws_other_numbers_than_its_parent_and_the_same_ones_with_equal_seeds() -> None:
    def draws(seed: str) -> list[list[float]]:
        ended = subprocess.run([sys.executable, "-Pc", FORKED, seed], capture_output=True, text=True, check=True)
        return [drawn for line in ended.stdout.splitlines() for drawn in ast.literal_eval(line)]

    first, again, other = draws("1"), draws("1"), draws("2")
    assert first == again and len(first) == 7
    for generator in zip(*first, *other, strict=True):
        assert len(set(generator)) == 14

"""Wrappers are applied in their order wherever an environment is made; one that can't be applied is named."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import penstock
from penstock.acting.environments.single_environments import SingleEnvironments
from penstock.acting.environments.vectors import Environments, MadeOnce
from penstock.errors import ConfigurationError, ForeignCode
from penstock.machine.module_imports import import_module
from tests.support.environments.made import make_environments

OWN = """
import gymnasium
import numpy as np

closed = []
made = []


class Scaled(gymnasium.ObservationWrapper):
    def __init__(self, env, factor=1.0, offsets=(0.0,)):
        super().__init__(env)
        self.factor, self.offsets = factor, offsets

    def observation(self, observation):
        return (observation * self.factor + sum(self.offsets)).astype(np.float32)


class Closing(gymnasium.Wrapper):
    def close(self):
        closed.append(self)
        super().close()


class Failing(gymnasium.Wrapper):
    def __init__(self, env):
        raise LookupError("no licence")


class Asserting(gymnasium.Wrapper):
    def __init__(self, env):
        assert env is None


class Once(gymnasium.Wrapper):
    def __init__(self, env):
        super().__init__(env)
        made.append(self)
        if len(made) > 1:
            raise LookupError("one licence")


def nothing(env):
    return None
"""

ORDERED: list[dict[str, Any]] = [
    {"name": "OWN:Scaled", "factor": 2.0},
    {"name": "OWN:Scaled", "offsets": (1.0, 2.0)},
    {"name": "TimeLimit", "max_episode_steps": 3},
]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "own_wrappers.py").write_text(OWN)
    return tmp_path / "own_wrappers.py"


def located(wrappers: Sequence[Mapping[str, Any]], own: Path) -> list[dict[str, Any]]:
    return [dict(each) | {"name": each["name"].replace("OWN", str(own))} for each in wrappers]


def ends(environments: Environments) -> list[bool]:
    """Returns in which of four steps the episode of the first environment was truncated."""
    environments.reset([1, 2])
    zeros = (np.zeros(2, np.int64),)
    return [bool(environments.step(zeros).truncated[0]) for _ in range(4)]


@pytest.mark.parametrize("form", [{}, {"vectorization": "process", "workers": 1}, {"python": sys.executable}])
def test_wrappers_are_applied_in_order_in_every_form(form: dict[str, Any], own: Path) -> None:
    plain = make_environments("CartPole-v1", 2, kwargs={})
    with closing(make_environments("CartPole-v1", 2, kwargs={}, wrappers=located(ORDERED, own), **form)) as wrapped:
        assert wrapped.timed and wrapped.spec == plain.spec
        assert ends(wrapped) == [False, False, True, False] and ends(plain) == [False] * 4
        plain.reset([5, 6])
        wrapped.reset([5, 6])
        expected = 2.0 * np.asarray(plain.observation[0], np.float32) + 3.0
        np.testing.assert_array_equal(wrapped.observation[0], expected)


def test_an_environment_of_a_run_is_wrapped_and_needs_trust_for_the_code_of_a_file(own: Path, tmp_path: Path) -> None:
    config = penstock.configure(
        "CartPole-v1", wrappers=located(ORDERED, own), environment={"variants": [{}, {"sutton_barto_reward": True}]}
    )
    file = tmp_path / "config.toml"
    file.write_text(config.to_toml())
    with pytest.raises(ForeignCode, match=r"environment\.wrappers '.*own_wrappers\.py:Scaled'"):
        penstock.make(penstock.Config.load(file))
    for variant, reward in enumerate((1.0, 0.0)):
        loaded = penstock.Config.load(file, trust_code=True)
        with closing(penstock.make(loaded, variant=variant, render_mode="rgb_array")) as env:
            observation, _ = env.reset(seed=5)
            assert observation == pytest.approx(2.0 * gymnasium.make("CartPole-v1").reset(seed=5)[0] + 3.0)
            assert env.step(0)[1] == reward and np.ndim(env.render()) == 3


def test_a_wrapper_changes_spaces() -> None:
    wrappers = [{"name": "FlattenObservation"}]
    made = make_environments("Blackjack-v1", 1, kwargs={}, wrappers=wrappers)
    assert made.spec.observation.shown() != make_environments("Blackjack-v1", 1, kwargs={}).spec.observation.shown()
    assert isinstance(made, SingleEnvironments) and made.envs[0].observation_space.shape == (32 + 11 + 2,)


@pytest.mark.parametrize(
    ("wrapper", "said"),
    [
        ({"name": "TimeLimits"}, "gymnasium.wrappers has no 'TimeLimits'; did you mean TimeLimit? Otherwise, your own"),
        ({"name": "FrameStack"}, "did you mean FrameStackObservation?"),
        ({"name": "vector"}, "gymnasium.wrappers has no 'vector'; your own wrapper needs file.py:Class or package"),
        ({"name": "TimeLimit", "steps": 3}, "it takes no argument 'steps'; it takes max_episode_steps; check env"),
        ({"name": "TimeLimit"}, "missing 1 required positional argument: 'max_episode_steps'; check environment.wr"),
        ({"name": "ClipAction"}, "; correct it, or remove it from environment.wrappers"),
        ({"name": "OWN:Failing"}, "LookupError: no licence (OWN, line 26); correct it, or remove it from environment"),
        ({"name": "OWN:Asserting"}, "AssertionError: env is None (OWN, line 31); correct it"),
        ({"name": "OWN:nothing"}, "it returned an object of NoneType, not an environment of Gymnasium; correct it"),
        ({"name": "OWN:Other"}, "OWN has no class or function 'Other'; correct the part of the name after the colon"),
        ({"name": "nowhere.py:Other"}, "there is no file nowhere.py"),
        ({"name": "no_such_package:Other"}, "No module named 'no_such_package'"),
    ],
)
def test_a_wrapper_that_can_not_be_applied_is_named_with_the_remedy(
    wrapper: dict[str, Any], said: str, own: Path
) -> None:
    applied = located([{"name": "OWN:Closing"}, wrapper], own)
    with pytest.raises(ConfigurationError) as caught:
        make_environments("CartPole-v1", 1, kwargs={}, wrappers=applied)
    name = wrapper["name"].replace("OWN", str(own))
    assert str(caught.value).startswith(f"can't wrap the environment 'CartPole-v1' in {name}: ")
    assert said.replace("OWN", str(own)) in str(caught.value) and "\n" not in str(caught.value)


def test_an_environment_is_closed_if_a_wrapper_fails(own: Path) -> None:
    wrappers = located([{"name": "OWN:Closing"}, {"name": "TimeLimits"}], own)
    with pytest.raises(ConfigurationError):
        make_environments("CartPole-v1", 1, kwargs={}, wrappers=wrappers)
    module: Any = import_module(str(own))
    assert len(module.closed) == 1


def test_a_wrapper_that_fails_the_second_time_may_help_itself_with_processes(own: Path) -> None:
    wrappers = located([{"name": "OWN:Once"}], own)
    with pytest.raises(MadeOnce, match=r"own_wrappers\.py:Once: LookupError: one licence .*vectorization process"):
        make_environments("CartPole-v1", 2, kwargs={}, wrappers=wrappers)
    with closing(
        make_environments("CartPole-v1", 2, kwargs={}, wrappers=wrappers, vectorization="process", workers=2)
    ) as environments:
        assert environments.count == 2


def test_a_wrapper_whose_package_is_missing_is_named_with_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "array_api_compat", None)
    # Gymnasium has a message of its own before release 1.3.
    needed = r"the wrapper NumpyToTorch needs array_api_compat; install it with|pip install .gymnasium\[array-api\]"
    with pytest.raises(ConfigurationError, match=needed):
        make_environments("CartPole-v1", 1, kwargs={}, wrappers=[{"name": "NumpyToTorch"}])

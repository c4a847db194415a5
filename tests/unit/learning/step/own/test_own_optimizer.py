"""An optimizer of the user's own takes the place of Adam, is saved, and useless ones are refused in one line."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import penstock
from penstock.algo.network import Network
from penstock.config import PPOConfig, SamplingConfig
from penstock.errors import ConfigurationError, TrainingFailed
from penstock.learning.durable import checkpoints
from penstock.learning.durable.checkpoints import RunProgress
from penstock.learning.step.learner import Learner
from penstock.runs.folder import RunFolder
from tests.support.environments.tiny import spec_of
from tests.support.services.ranks import ranks_in_threads
from tests.support.training.training import (
    CPU,
    SMALL,
    make_batch,
    make_learner,
    numbers_of,
    parameters_of,
    same_parameters,
)

HERE = __name__
GRU = Network(hidden_sizes=(16,), memory="gru", memory_size=8)

Parameters = list[nn.Parameter]


def adam(parameters: Parameters, learning_rate: float) -> torch.optim.Optimizer:
    """The optimizer of Penstock."""
    return torch.optim.Adam(parameters, learning_rate, eps=1e-5, fused=True)


def rmsprop(parameters: Parameters, learning_rate: float) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(parameters, learning_rate, momentum=0.5, centered=True)


def momentum(parameters: Parameters, learning_rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, learning_rate, momentum=0.9)


def two_rates(parameters: Parameters, learning_rate: float) -> torch.optim.Optimizer:
    groups: list[dict[str, Any]] = [{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.1 * learning_rate}]
    return torch.optim.AdamW(groups, learning_rate)


def partial(parameters: Parameters, learning_rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters[2:], learning_rate)


class Counting(torch.optim.Optimizer):
    """Descent with numbers in its state, of which the step depends."""

    def __init__(self, parameters: Parameters, learning_rate: float) -> None:
        super().__init__(parameters, {"lr": learning_rate})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for each in group["params"]:
                state = self.state[each]
                state["count"] = state.get("count", 0) + 1
                state["rate"] = state.get("rate", 1.0) * 0.9
                state["odd"] = state["count"] % 2 == 1
                each -= group["lr"] * state["rate"] * (2.0 if state["odd"] else 1.0) * each.grad


class Forgetful(Counting):
    """Descent that depends on a counter outside of its state."""

    calls = 0

    def step(self, closure: Any = None) -> Any:
        self.calls += 1
        super().step()
        if self.calls > 1:
            super().step()


class Listing(Counting):
    def step(self, closure: Any = None) -> Any:
        super().step()
        for state in self.state.values():
            state["history"] = [1.0]


class WithMore(Counting):
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "slow": 1.0}


class Replacing(Counting):
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for each in group["params"]:
                each.data = each.data - group["lr"] * each.grad


class Exploding(Counting):
    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        self.param_groups[0]["params"][0].fill_(math.nan)


class WithoutRate(Counting):
    def __init__(self, parameters: Parameters, learning_rate: float) -> None:
        torch.optim.Optimizer.__init__(self, parameters, {})


class Failing(Counting):
    def step(self, closure: Any = None) -> Any:
        raise KeyError("step")


class Late(Counting):
    """Fails in its third step: the trial takes two."""

    def step(self, closure: Any = None) -> Any:
        super().step()
        if self.state[self.param_groups[0]["params"][0]]["count"] == 3:
            raise KeyError("late")


def nothing(parameters: Parameters, learning_rate: float) -> None: ...


def foreign(parameters: Parameters, learning_rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.zeros(2))], learning_rate)


def failing(parameters: Parameters, learning_rate: float) -> torch.optim.Optimizer:
    raise ValueError("no")


def one_argument(parameters: Parameters) -> torch.optim.Optimizer:
    return adam(parameters, 1e-3)


def lbfgs(parameters: Parameters, learning_rate: float) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(parameters, learning_rate)


def own(name: str) -> str:
    return name if ":" in name else f"{HERE}:{name}"


@pytest.mark.parametrize("network", [SMALL, GRU], ids=["rows", "segments"])
def test_the_adam_of_a_user_trains_the_same(network: Network) -> None:
    batch = make_batch(fresh=4, network=network)
    ours, theirs = (make_learner(network=network, execution="eager", optimizer=name) for name in (f"{HERE}:adam", None))
    for progress in (0.0, 0.5, 0.9):
        expected = numbers_of(theirs.train(batch, progress))
        assert numbers_of(ours.train(batch, progress)) == pytest.approx(expected, rel=1e-4, abs=1e-7)
    # Vector instructions round the elements at the ends of single tensors in another way.
    torch.testing.assert_close(ours.parameters, theirs.parameters, rtol=0, atol=1e-6)


def test_a_run_says_that_torch_takes_the_steps_of_an_optimizer() -> None:
    learner = make_learner(optimizer="torch.optim:AdamW")
    assert learner.execution == "eager" and make_learner().execution == "direct"
    assert learner.notices == (
        "learner.optimizer torch.optim:AdamW makes AdamW in place of Adam, so torch takes the steps (eager)",
    )


def test_the_schedule_scales_the_rates_of_all_groups() -> None:
    # Steps of AdamW without decay have the size of the rate at first.
    learner = make_learner(optimizer=f"{HERE}:two_rates", learning_rate=0.1, epochs=1, minibatches=1)
    before = parameters_of(learner)
    learner.train(make_batch(), 0.75)
    largest = {
        name: float((each.detach() - before[name]).abs().max()) for name, each in learner.policy.named_parameters()
    }
    first = [name for name, _ in learner.policy.named_parameters()][:2]
    for name, moved in largest.items():
        assert moved == pytest.approx(0.1 * 0.25 * (1.0 if name in first else 0.1), rel=0.2), name
    assert learner.optimizer.learning_rate == pytest.approx(0.025)


def test_parameters_that_are_left_out_are_a_warning_and_stay() -> None:
    learner = make_learner(optimizer=f"{HERE}:partial")
    assert learner.notices[1] == (
        f"learner.optimizer '{HERE}:partial' (line {partial.__code__.co_firstlineno}) leaves out 2 of the policy's 12"
        " parameters; they will not be trained"
    )
    before = parameters_of(learner)
    learner.train(make_batch(), 0.0)
    names = [name for name, _ in learner.policy.named_parameters()]
    changed = [name for name in names if not parameters_of(learner)[name].equal(before[name])]
    assert changed == names[2:]


NAMES = ["torch.optim:AdamW", "torch.optim:NAdam", "torch.optim:Rprop", "torch.optim:ASGD", "torch.optim:SGD"]
OWN_NAMES = ["adam", "rmsprop", "momentum", "two_rates", "Counting"]


@pytest.mark.parametrize("name", [*NAMES, *OWN_NAMES])
def test_a_checkpoint_continues_as_without_interruption(name: str, tmp_path: Path) -> None:
    batch, folder = make_batch(fresh=4), RunFolder(tmp_path)
    whole = make_learner(optimizer=own(name))
    # Before the first step an optimizer has no state.
    checkpoints.restore(make_learner(optimizer=own(name)), saved(whole, folder, steps=0))
    whole.train(batch, 0.0)
    path = saved(whole, folder, steps=1)
    resumed = make_learner(optimizer=own(name), seed=5)
    checkpoints.restore(resumed, path)
    for progress in (0.3, 0.6):
        assert numbers_of(resumed.train(batch, progress)) == numbers_of(whole.train(batch, progress))
    assert same_parameters(resumed, whole)
    states = resumed.optimizer.state, whole.optimizer.state
    assert states[0].keys() == states[1].keys()
    assert all(value.equal(states[1][key]) for key, value in states[0].items())


def saved(learner: Learner, folder: RunFolder, *, steps: int) -> Path:
    folder.create()
    return checkpoints.save(folder, checkpoints.take(learner, RunProgress(env_steps=steps)), keep=9)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            None,
            "torch.optim:AdamW",
            "it has the state of Penstock's Adam, and learner.optimizer .* makes AdamW; resume",
        ),
        ("torch.optim:AdamW", "momentum", "it has the state of AdamW, and learner.optimizer .*:momentum makes SGD;"),
        ("torch.optim:AdamW", None, "it has the state of AdamW, which learner.optimizer made, and there is none now;"),
    ],
)
def test_a_checkpoint_of_another_optimizer_is_refused(
    before: str | None, after: str | None, message: str, tmp_path: Path
) -> None:
    first = make_learner(optimizer=None if before is None else own(before))
    first.train(make_batch(), 0.0)
    path = saved(first, RunFolder(tmp_path), steps=1)
    with pytest.raises(ConfigurationError, match=message) as refused:
        checkpoints.restore(make_learner(optimizer=None if after is None else own(after)), path)
    assert str(refused.value).startswith(f"{path} does not fit this run: ") and "\n" not in str(refused.value)
    # Its policy can be the beginning of another run.
    checkpoints.start_from(make_learner(optimizer=None if after is None else own(after)), path)


def test_an_empty_state_resets_the_optimizer() -> None:
    learner = make_learner(optimizer=f"{HERE}:momentum")
    learner.train(make_batch(), 0.0)
    assert learner.optimizer.state
    learner.optimizer.load({})
    assert not learner.optimizer.state


def test_a_refused_step_leaves_the_optimizer_as_it_was() -> None:
    raw = Network(hidden_sizes=(16, 16), normalise_observations=False, normalise_returns=False)
    learner = make_learner(optimizer=f"{HERE}:momentum", network=raw, normalise_advantages=False)
    learner.train(make_batch(), 0.0)
    held = {**learner.optimizer.state, "parameters": learner.parameters.detach()}
    before = {name: each.clone() for name, each in held.items()}
    learner.parameters.grad.fill_(math.nan)  # type: ignore[union-attr]
    learner.optimizer.step(torch.ones(()))
    now = {**learner.optimizer.state, "parameters": learner.parameters.detach()}
    assert all(now[name].equal(each) for name, each in before.items())
    learner.optimizer.step(torch.zeros(()))
    with pytest.raises(penstock.PenstockError, match="is not finite"):
        learner.check_finite()


def test_the_trial_leaves_parameters_and_random_generators_unchanged() -> None:
    plain, state = make_learner(), torch.random.get_rng_state()
    learner = make_learner(optimizer=f"{HERE}:rmsprop")
    assert same_parameters(plain, learner) and torch.random.get_rng_state().equal(state)
    assert not learner.optimizer.state and not learner.parameters.grad.any()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "adam",
            "has no module or no function; write it as file.py:my_optimizer, my_package.my_module:my_optimizer or",
        ),
        (f"{HERE}:absent", f"names nothing of {HERE}; correct the part after the colon"),
        (
            f"{HERE}:one_argument",
            r"does not take two arguments \(line \d+\): too many .*; take \(parameters, learning_",
        ),
        (f"{HERE}:nothing", r"\(line \d+\) returned a value of type NoneType; return a torch.optim.Optimizer"),
        ("torch.nn:Bilinear", "failed: TypeError: .*; correct it|does not take two arguments"),
        (f"{HERE}:failing", r"failed: ValueError: no \(.*test_own_optimizer.py, line \d+\); correct it"),
        (f"{HERE}:foreign", "makes an optimizer of tensors that are not parameters of the policy; give it the first"),
        (
            f"{HERE}:WithoutRate",
            "makes an optimizer without a learning rate, so ppo.learning_rate can't have an effect",
        ),
        (f"{HERE}:Failing", r"whose step failed: KeyError: 'step' \(.*test_own_optimizer.py, line \d+\); correct it"),
        (f"{HERE}:lbfgs", "whose step failed: TypeError: .*closure.*; correct it"),
        (f"{HERE}:Exploding", "makes an optimizer whose step is not finite; correct it"),
        (f"{HERE}:Replacing", "makes an optimizer that replaces the parameters; change them in place"),
        (
            f"{HERE}:Listing",
            r"with a value of type list in its state \('history'\), which can't be saved; keep tensors",
        ),
        (
            f"{HERE}:WithMore",
            "makes an optimizer with slow in its state_dict, which can't be saved; keep its values in",
        ),
        (f"{HERE}:Forgetful", "continues differently from its saved state, so no run could be resumed; keep all that"),
    ],
)
def test_what_is_no_optimizer_is_refused_in_one_line_before_training(name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as refused:
        make_learner(optimizer=name)
    assert str(refused.value).startswith(f"learner.optimizer {name!r}") and "\n" not in str(refused.value)


def test_an_optimizer_that_fails_in_training_ends_it_in_one_line() -> None:
    learner = make_learner(optimizer=f"{HERE}:Late")
    with pytest.raises(TrainingFailed, match=r"whose step failed: KeyError: 'late' \(.*, line \d+\); correct it"):
        learner.train(make_batch(), 0.0)


def test_an_optimizer_is_refused_by_several_ranks_and_not_imported() -> None:
    with pytest.raises(ConfigurationError, match=r"learner.optimizer needs a learner of one rank.*; remove it, or"):
        Learner(
            spec_of("CartPole-v1"),
            SMALL,
            ppo=PPOConfig(),
            sampling=SamplingConfig(),
            device=CPU,
            seed=0,
            ranks=ranks_in_threads(2)[0],
            optimizer="no_such_package:optimizer",
        )


def test_a_name_of_another_library_is_answered() -> None:
    assert penstock.Config(optimizer="Adam").learner.optimizer is None
    with pytest.raises(ConfigurationError, match=r"learner.optimizer must be a class .* torch.optim:AdamW .*; got 'mu"):
        penstock.Config(optimizer="muon")


def test_functions_and_classes_are_values_of_the_setting() -> None:
    for value, end in ((adam, ":adam"), (torch.optim.AdamW, ":AdamW")):
        name = penstock.Config(optimizer=value).learner.optimizer
        assert name is not None and name.endswith(end)

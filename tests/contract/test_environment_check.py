"""The check of environments before a run, in its real child process: its refusals, and processes left behind."""

import os
import signal
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import psutil
import pytest

from penstock.config import Config, build
from penstock.errors import ConfigurationError
from penstock.local.environment_check import check_environment
from tests.support.environments import made
from tests.support.environments.odd import KINDS, Where, env_id
from tests.support.machine.timing import NEVER_S, start_patience_s, wait_for
from tests.support.services.processes import WITH_HELPERS
from tests.support.tiers import gate_of

# Gymnasium warns about the faults of these kinds, which are intended.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

MARK = f"TEST_OF_PENSTOCK_{uuid.uuid4().hex.upper()}"
CHECKED = [name for name, kind in KINDS.items() if kind.where is not Where.TRAINING]
SAMPLE = {"constructor_exits_with_code_2", "constructor_interrupts", "nan_reward", "step_raises", "extreme_reward"}
"""Kinds that could be checked in this process, but are checked in the real one as samples."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The output of a check: warnings, lines about slow stages, and the refusal, if there is one."""

    warnings: list[str]
    refusal: str
    slow: list[str] = field(default_factory=list, compare=False)


def settings(env_id: str, imports: str, **environment: object) -> Config:
    return build({"environment": {"id": env_id, "imports": [imports], **environment}})


def odd(kind: str, timeout_s: float) -> Config:
    return settings(env_id(kind), "tests.support.environments.odd", check_timeout_s=timeout_s)


def checked(config: Config) -> Checked:
    lines, refusal = list[str](), ""
    try:
        check_environment(config, lines.append)
    except ConfigurationError as error:
        refusal = str(error)
    slow = [line for line in lines if line.startswith("still ")]
    return Checked([line for line in lines if line not in slow], refusal, slow)


def checked_here(env_id: str, arguments: Mapping[str, str] = MappingProxyType({})) -> Checked:
    """Runs the check in this process, which takes a hundredth of the time."""
    try:
        found = made.checked(env_id, [arguments], imports=["tests.support.environments.odd"])
    except ConfigurationError as error:
        return Checked([], str(error))
    return Checked([f"warning: {line}" for line in found.warnings], "")


def left_behind() -> list[str]:
    """Returns the command lines of processes that the checks have started and that still run."""
    found = []
    for process in psutil.process_iter():
        try:
            if MARK in process.environ() and process.status() != psutil.STATUS_ZOMBIE and process.pid != os.getpid():
                found.append(" ".join(process.cmdline()))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[str, Future[Checked]]]:
    """Checks all kinds, a few at a time, because each starts a process that imports Gymnasium."""
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(max_workers=3) as pool:
        patch.setenv("PYTHONPATH", WITH_HELPERS["PYTHONPATH"])
        patch.setenv(MARK, "1")

        started = time.monotonic()
        checked(odd("changed_directory", start_patience_s()))
        # Kinds that do not hang finish within this time even on a busy machine.
        enough_s = 2.0 + 5.0 * (time.monotonic() - started)

        def begin(name: str) -> Checked:
            if not KINDS[name].alone and name not in SAMPLE:
                return checked_here(env_id(name))
            return checked(odd(name, enough_s if KINDS[name].hangs else start_patience_s()))

        yield {name: pool.submit(begin, name) for name in CHECKED}


@pytest.mark.parametrize("name", gate_of(12, [name for name in CHECKED if KINDS[name].where is Where.REFUSED]))
def test_an_odd_environment_is_refused_in_one_line_with_its_name_and_the_cause(
    outcomes: dict[str, Future[Checked]], name: str
) -> None:
    refusal = outcomes[name].result().refusal
    assert env_id(name) in refusal
    for text in KINDS[name].says:
        assert text in refusal
    assert "\n" not in refusal


@pytest.mark.parametrize("name", [name for name in CHECKED if KINDS[name].where is Where.WARNED])
def test_a_strange_environment_is_accepted_with_a_warning(outcomes: dict[str, Future[Checked]], name: str) -> None:
    checked = outcomes[name].result()
    assert checked.refusal == ""
    (warning,) = checked.warnings
    assert warning.startswith("warning: ") and env_id(name) in warning
    for text in KINDS[name].says:
        assert text in warning


@pytest.mark.parametrize("name", gate_of(4, [name for name in CHECKED if KINDS[name].where is Where.HARMLESS]))
def test_effects_of_an_environment_on_its_process_do_not_affect_the_check(
    outcomes: dict[str, Future[Checked]], name: str
) -> None:
    before = (Path.cwd(), signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT))
    assert outcomes[name].result() == Checked([], "")
    assert (Path.cwd(), signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_no_process_of_a_check_remains(outcomes: dict[str, Future[Checked]]) -> None:
    for outcome in outcomes.values():
        outcome.result()
    wait_for(lambda: not left_behind(), "the end of the checks' processes")
    assert not [thread for thread in threading.enumerate() if "environment" in thread.name]


class Seen(Exception):
    """Raised by the callback when the expected output was seen."""


def test_a_slow_stage_is_shown_while_it_lasts(
    outcomes: dict[str, Future[Checked]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.local.environment_check._SLOW_S", 0.2)

    def stop_when_shown(line: str) -> None:
        if line.startswith(f"still resetting the environment {env_id('reset_hangs')}: "):
            raise Seen(line)

    # An exception of the callback also ends the check, and leaves nothing behind.
    with pytest.raises(Seen, match=rf" s of at most {NEVER_S:g} s$"):
        check_environment(odd("reset_hangs", NEVER_S), stop_when_shown)


def test_each_variant_and_the_actors_own_arguments_are_checked(outcomes: dict[str, Future[Checked]]) -> None:
    variants = [{"length": 2}, {"length": 0}]
    config = build(
        {
            "environment": {"id": "Counting-v0", "imports": ["tests.support.environments.tiny"], "variants": variants},
            "train": {"actors": 2},
        }
    )
    refusal = checked(config).refusal
    assert refusal.startswith("environment variant 1 (length=0): can't make the environment 'Counting-v0': ")
    assert "ValueError: an episode of Counting" in refusal
    config = settings("Counting-v0", "tests.support.environments.tiny", training_kwargs={"lengthh": 2})
    refusal = checked(config).refusal
    assert "for training" in refusal and "lengthh" in refusal and "environment.training_kwargs" in refusal


def test_text_for_a_boolean_argument_is_refused(outcomes: dict[str, Future[Checked]]) -> None:
    config = settings("CartPole-v1", "tests.support.environments.tiny", kwargs={"sutton_barto_reward": "no"})
    assert "the argument sutton_barto_reward of CartPole-v1 must be True or False" in checked(config).refusal


def test_the_native_form_is_checked_through_the_adapter_that_actors_use(outcomes: dict[str, Future[Checked]]) -> None:
    assert checked(settings("CartPole-v1", "tests.support.environments.tiny", vectorization="native")) == Checked(
        [], ""
    )
    refusal = checked(settings("NeverResets-v0", "tests.support.environments.tiny", vectorization="native")).refusal
    assert "does not reset automatically" in refusal


def test_an_environment_that_a_process_can_make_only_once_gets_worker_processes(
    outcomes: dict[str, Future[Checked]],
) -> None:
    lines = list[str]()
    config, _ = check_environment(settings("Once-v0", "tests.support.environments.failing"), lines.append)
    assert (config.environment.vectorization, config.environment.workers) == ("process", 20)
    assert [line for line in lines if not line.startswith("still ")] == [
        "a process can make Once-v0 only once, so each environment has a process of its own"
        " (environment.vectorization process)"
    ]


@pytest.mark.parametrize(("workers", "chosen"), [(None, 20), (2, 20), (20, 20), (24, 24)])
def test_worker_processes_for_several_of_such_environments_become_one_for_each(
    workers: int | None, chosen: int, outcomes: dict[str, Future[Checked]]
) -> None:
    lines = list[str]()
    given = settings("Once-v0", "tests.support.environments.failing", vectorization="process", workers=workers)
    config, _ = check_environment(given, lines.append)
    assert (config.environment.vectorization, config.environment.workers) == ("process", chosen)
    assert any("has a process of its own" in line for line in lines) == (chosen != workers)


@pytest.mark.nightly
def test_a_constructor_that_fails_the_second_time_everywhere_is_refused(
    tmp_path: Path, outcomes: dict[str, Future[Checked]]
) -> None:
    config = settings("Once-v0", "tests.support.environments.failing", kwargs={"never": str(tmp_path / "made")})
    assert "RuntimeError: can't create multiple emulators" in checked(config).refusal


def test_an_import_that_fails_is_reported_with_its_location(
    tmp_path: Path, outcomes: dict[str, Future[Checked]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        (tmp_path / "broken_module.py").write_text("raise RuntimeError('no licence')\n")
        patch.chdir(tmp_path)
        refusal = checked(settings("CartPole-v1", "broken_module")).refusal
    assert "RuntimeError: no licence" in refusal and f"{tmp_path / 'broken_module.py'}, line 1" in refusal


def test_a_module_of_the_current_folder_does_not_shadow_an_installed_one(
    tmp_path: Path, outcomes: dict[str, Future[Checked]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        (tmp_path / "gymnasium.py").write_text("raise SystemExit('shadowed')\n")
        (tmp_path / "my_environments.py").write_text(
            "import gymnasium\n"
            "gymnasium.register('Mine-v0', 'gymnasium.envs.classic_control:CartPoleEnv', max_episode_steps=9)\n"
        )
        patch.chdir(tmp_path)
        assert checked(settings("Mine-v0", "my_environments")) == Checked([], "")
        assert checked(build({"environment": {"id": "my_environments:Mine-v0"}})) == Checked([], "")


def test_an_environment_that_ends_its_process_while_its_mask_is_read_is_named(
    tmp_path: Path, outcomes: dict[str, Future[Checked]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        (tmp_path / "aborting_masks.py").write_text(
            "import os\nimport gymnasium\nfrom tests.support.environments.tiny import Counting\n"
            "class Aborting(Counting):\n    def action_masks(self):\n        os.abort()\n"
            "gymnasium.register('Aborting-v0', Aborting)\n"
        )
        patch.chdir(tmp_path)
        refusal = checked(settings("Aborting-v0", "aborting_masks")).refusal
    assert refusal.startswith("resetting the environment 'Aborting-v0' ended its process with SIGABRT")


OWN_FAULTS = """
import gymnasium


class Arm(gymnasium.Env):
    action_space = observation_space = gymnasium.spaces.Discrete(2)

    def __init__(self, flaw=""):
        self.flaw = flaw

    def reset(self, **kwargs):
        if self.flaw == "argument":
            int(None)
        return 0, {}

    def step(self, action):
        if self.flaw == "unpack":
            one, two = (1,)
        if self.flaw == "raise":
            raise RuntimeError("joint limit")
        return (0, 0.0, False, {}) if self.flaw == "old" else (0, 0.0, False, False, {})


class Unseeded(Arm):
    def reset(self):
        return 0, {}
"""


@pytest.mark.parametrize("folder", ["project", "penstock", "gymnasium", "wörk späce/numpy"])
def test_a_refusal_names_the_line_of_the_user_or_what_the_call_needs(folder: str, tmp_path: Path) -> None:
    file = tmp_path / folder / "arm.py"
    file.parent.mkdir(parents=True)
    file.write_text(OWN_FAULTS)
    correct = "; correct the environment, or choose another by --env-id"
    for name, flaw, cause, remedy in (
        ("Arm", "raise", f"RuntimeError: joint limit ({file}, line 20) in step 1", correct),
        ("Arm", "unpack", f"not enough values to unpack (expected 2, got 1) ({file}, line 18) in step 1", correct),
        ("Arm", "argument", f"not 'NoneType' ({file}, line 13) in reset", correct),
        ("Arm", "old", "", "; step must return observation, reward, terminated, truncated and info"),
        ("Unseeded", "", "keyword argument 'seed' in reset", "; reset must take the keywords seed and options"),
    ):
        refusal = checked_here(f"{file}:{name}", {"flaw": flaw}).refusal
        assert cause in refusal and f" ({file}:{name}){remedy}" in refusal


PARSING = """
import argparse
import gymnasium

def level():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, required=True)
    return parser.parse_args().level

class Parsing(gymnasium.Env):
    observation_space = action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        assert level() == 3

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        assert level() == 3
        return 0, 1.0, True, False, {}
"""


@pytest.mark.parametrize("at_import", ["", "level()", "import sys; int(sys.argv[2])"])
def test_a_file_finds_the_arguments_of_the_script_that_calls_train(
    at_import: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"{PARSING}\n{at_import}\n")
    monkeypatch.setattr("sys.argv", [str(script), "--level", "3"])
    assert checked(build({"environment": {"id": f"{script}:Parsing"}})).refusal == ""


def test_a_file_that_refuses_its_arguments_is_reported_with_them_and_with_what_it_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"{PARSING}\nlevel()\n")
    monkeypatch.setattr("sys.argv", [str(script), "--other", "3"])
    refusal = checked(build({"environment": {"id": f"{script}:Parsing"}})).refusal
    assert "SystemExit: 2" in refusal
    assert "'--other', '3'" in refusal
    assert "error: the following arguments are required: --level" in refusal


def test_the_agents_of_an_environment_fill_the_numbers_of_environments_and_one_agent_changes_none() -> None:
    pytest.importorskip("pettingzoo")
    variants = [{"g": gravity} for gravity in (9.0, 10.0, 11.0)]
    single = build({"environment": {"id": "Pendulum-v1", "variants": variants}, "train": {"actors": 3}})
    assert check_environment(single, lambda line: None)[0].evaluation.episodes == 20
    several = settings("tests.support.environments.relay:Relay", "tests.support.environments.relay")
    found, _ = check_environment(several, (lines := list[str]()).append)
    assert (found.actor.environments, found.evaluation.episodes) == (9, 21)
    assert any("has 3 agents" in line and "evaluation.episodes 21 in place of 20" in line for line in lines)

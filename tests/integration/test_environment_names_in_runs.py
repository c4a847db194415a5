"""Runs of environments that are named by a file, a class, or the script that calls `penstock.train`."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.config import build, load_toml
from penstock.runs.folder import RunFolder
from tests.support.machine.timing import start_patience_s
from tests.support.services.processes import WITH_HELPERS, run

pytestmark = pytest.mark.nightly

ENVIRONMENT = """
import gymnasium
import penstock
from gymnasium.envs.classic_control import CartPoleEnv


class Short(CartPoleEnv):
    def __init__(self, most=20, **kwargs):
        super().__init__(**kwargs)
        self.most, self.steps = most, 0

    def reset(self, **kwargs):
        self.steps = 0
        return super().reset(**kwargs)

    def step(self, action):
        self.steps += 1
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, self.steps >= self.most, info


gymnasium.register("Short-v0", Short)
gymnasium.register("ShortPendulum-v0", "gymnasium.envs.classic_control:PendulumEnv", max_episode_steps=20)
"""
CALL = "penstock.train({what}, run={{'total_steps': 512, 'dir': 'run'}}, evaluation={{'episodes': 2}})"
GUARD = "if __name__ == '__main__':\n    "


@dataclass(frozen=True, slots=True)
class Script:
    """The end of a script, and the settings of its run."""

    code: int
    error: str
    folder: Path


def run_script(folder: Path, ending: str) -> Script:
    (folder / "my_script.py").write_text(f"{ENVIRONMENT}\n{ending}\n")
    return run_python(folder, "my_script.py")


def run_python(folder: Path, *arguments: str, program: str | None = None) -> Script:
    ended = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", **WITH_HELPERS},
        input=program,
        capture_output=True,
        text=True,
        timeout=start_patience_s(),
    )
    return Script(ended.returncode, ended.stderr, folder / "run")


@pytest.mark.parametrize(
    ("what", "env_id", "imported"),
    [
        ("Short", "my_script.py:Short", False),
        ("'Short-v0'", "Short-v0", True),
        ("'ShortPendulum-v0'", "ShortPendulum-v0", True),
    ],
    ids=["class", "registered_class", "registered_entry_of_a_package"],
)
def test_a_script_trains_its_own_environment(tmp_path: Path, what: str, env_id: str, imported: bool) -> None:
    script = run_script(tmp_path, GUARD + CALL.format(what=what))
    assert script.code == 0, script.error
    environment = build(load_toml(RunFolder(script.folder).config)).environment
    assert environment.id.endswith(env_id)
    assert environment.imports == ((str(tmp_path / "my_script.py"),) if imported else ())
    assert RunFolder(script.folder).summary.exists()


def test_a_script_without_the_guard_is_refused_with_the_line_of_the_call(tmp_path: Path) -> None:
    script = run_script(tmp_path, CALL.format(what="'Short-v0'"))
    last = script.error.strip().splitlines()[-1]
    assert script.code != 0 and not script.folder.exists()
    assert "my_script.py, line" in last and 'put the call below `if __name__ == "__main__":`' in last


@pytest.mark.parametrize("from_input", [False, True], ids=["command", "standard_input"])
@pytest.mark.parametrize(
    ("what", "remedy"),
    [
        ("Short", "write it to a file, and give it as 'file.py:Name'"),
        ("'Short-v0'", "write it to a file, and give it as 'file.py:Name'"),
        ("'ShortPendulum-v0'", "write its registration to a file, and name that file in environment.imports"),
    ],
    ids=["class", "registered_class", "registered_entry_of_a_package"],
)
def test_an_environment_of_a_session_is_refused_with_a_remedy(
    tmp_path: Path, what: str, remedy: str, from_input: bool
) -> None:
    # Notebooks and interpreters have no file, either.
    program = f"{ENVIRONMENT}\n{CALL.format(what=what)}\n"
    session = run_python(tmp_path, program=program) if from_input else run_python(tmp_path, "-c", program)
    last = session.error.strip().splitlines()[-1]
    assert session.code != 0 and not session.folder.exists()
    assert last.startswith("penstock.errors.ConfigurationError: the services can't") and last.endswith(remedy)
    assert "this session" in last


def test_a_session_trains_the_class_of_a_module_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "my_environments.py").write_text(ENVIRONMENT)
    ending = f"from my_environments import Short\n{CALL.format(what='Short')}"
    session = run_python(tmp_path, "-c", f"import penstock\n{ending}")
    assert session.code == 0, session.error
    assert build(load_toml(RunFolder(session.folder).config)).environment.id == f"{tmp_path}/my_environments.py:Short"


def test_a_command_trains_the_class_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "my_environments.py").write_text(ENVIRONMENT)
    options = ["--env-id=my_environments.py:Short", "--environment.kwargs=most=9", "--evaluation.episodes=2"]
    ended = run("train", *options, "--total-steps=512", "--run-dir=run", directory=tmp_path)
    assert ended.code == 0, ended.stderr
    config = build(load_toml(RunFolder(tmp_path / "run").config))
    assert config.environment.id == f"{tmp_path}/my_environments.py:Short"


def test_the_store_fits_an_atari_game_of_which_only_the_id_is_given(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    options = ["--env-id=ALE/Assault-v5", "--total-steps=512", "--ppo.epochs=1", "--evaluation.episodes=2"]
    limit = "--evaluation.max-episode-steps=20"
    ended = run("train", *options, limit, f"--run-dir={tmp_path / 'run'}")
    assert ended.code == 0, ended.stderr
    assert build(load_toml(RunFolder(tmp_path / "run").config)).replay.store_size.amount > 2 * 64 * 2**20


def test_a_store_that_is_too_small_is_refused_before_anything_starts(tmp_path: Path) -> None:
    options = ["--env-id=CartPole-v1", "--replay.capacity-bytes=65536", f"--run-dir={tmp_path / 'run'}"]
    ended = run("train", *options)
    (line,) = ended.stderr.splitlines()
    assert ended.code == 2 and "leave it unset" in line and "CartPole-v1" in line
    assert not (tmp_path / "run").exists()

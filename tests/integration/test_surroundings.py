"""Runs whose surroundings lack something that is usual: a reader of their output, or a call of the system."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import load_metrics
from penstock.runs.folder import RunFolder
from tests.support.machine.timing import start_patience_s
from tests.support.services.processes import PENSTOCK, run

pytestmark = pytest.mark.nightly

SMALL = (
    *("--env-id=CartPole-v1", "--preset=none", "--actors=1", "--total-steps=600", "--ppo.epochs=1"),
    *("--evaluation.episodes=2", "--evaluation.max-episode-steps=50", "--run-dir=run"),
)
LEAVING_NOTHING = """
import gc
import sys

import penstock

if __name__ == "__main__":
    left = []
    sys.unraisablehook = lambda unraisable: left.append(repr(unraisable.object))
    settings = {"evaluation": {"episodes": 2, "max_episode_steps": 50}, "run_dir": "run", "epochs": 1, "actors": 1}
    penstock.train("CartPole-v1", preset="none", total_steps=600, **settings)
    policy, env = penstock.load_policy("run"), penstock.make("run")
    policy.act(env.reset(seed=1)[0])
    env.close()
    assert penstock.load_metrics("run") is not None
    try:
        penstock.train("Nothing-v0")
    except penstock.ConfigurationError:
        pass
    gc.collect()
    sys.exit("left open: " + ", ".join(left) if left else 0)
"""
AT_THE_SAME_TIME = """
import multiprocessing
import threading

import penstock


def train(name):
    settings = {"evaluation": {"episodes": 2, "max_episode_steps": 50}, "epochs": 1, "actors": 1}
    return penstock.train("CartPole-v1", preset="none", total_steps=600, run_dir=name, **settings).stopped


def train_twice(name):
    ended = []
    other = threading.Thread(target=lambda: ended.append(train(name + "-thread")))
    other.start()
    ended.append(train(name))
    other.join()
    return ended


if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.map(train_twice, ["run"]) == [["total_steps", "total_steps"]]
"""
NO_PIDFD_OPEN = """
import os


def refused(*arguments):
    raise OSError(38, "Function not implemented")


os.pidfd_open = refused
"""
NAMES_OF_MACOS = """
import os
import socket

# What `mypy --platform darwin` does not find in these modules, of all that Penstock uses.
for name in ("O_DIRECT", "fdatasync", "memfd_create", "pidfd_open", "posix_fallocate", "waitid"):
    delattr(os, name)
del os.sched_getaffinity
del socket.SO_PEERCRED
"""


IGNORED = {
    "numba": {"NUMBA_DISABLE_JIT": "1"},
    "grpc": {"GRPC_POLL_STRATEGY": "epollex"},
    "matplotlib": {"MPLBACKEND": "Qt4Agg"},
    "prometheus": {"PROMETHEUS_MULTIPROC_DIR": "/missing", "prometheus_multiproc_dir": "/missing"},
    "proxies": dict.fromkeys(("http_proxy", "grpc_proxy", "https_proxy", "ALL_PROXY"), "http://127.0.0.1:9"),
    "encodings": {"PYTHONIOENCODING": "utf-16", "LC_ALL": "C", "PYTHONUTF8": "0"},
    "warnings": {"PYTHONWARNINGS": "error", "PYTHONOPTIMIZE": "2", "PYTHONDEVMODE": "1"},
    "threads": {"OMP_NUM_THREADS": "many", "MKL_NUM_THREADS": "0", "NUMBA_NUM_THREADS": "x"},
    "folders": {"TMPDIR": "/missing", "HOME": "/missing", "XDG_CACHE_HOME": "/missing", "MPLCONFIGDIR": "/missing"},
}
IN_LITTLE = """
mount -t tmpfs none made
for name in null zero full random urandom tty; do
    touch made/$name
    mount --bind /dev/$name made/$name
done
ln -s /proc/self/fd made/fd
mount --move made /dev
[ ! -e /dev/shm ]
unset HOME
ulimit -n 40
exec "$@" >&- 2>&-
"""
"""Commands of a shell with mounts of its own, which then executes its arguments."""
REPORTED = {
    "foreign package": ("PYTHONPATH", "FOREIGN", "No module named 'google.protobuf'"),
    "broken package": ("PYTHONPATH", "BROKEN", "SyntaxError"),
    "protobuf": ("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "cpp", "google.protobuf.pyext"),
    "torch": ("TORCH_LOGS", "nonsense", "ValueError"),
}


@pytest.mark.parametrize("variables", IGNORED.values(), ids=IGNORED)
def test_inherited_variables_of_libraries_do_not_change_the_end_of_a_run(
    variables: dict[str, str], tmp_path: Path
) -> None:
    ended = run("train", *SMALL, directory=tmp_path, environment=variables)
    assert (ended.code, ended.stderr) == (0, ""), ended.stderr
    folder = RunFolder(tmp_path / "run")
    assert folder.summary.exists() and folder.learning_curve.exists()
    assert "restarting" not in ended.stdout


@pytest.mark.parametrize(("name", "value", "reason"), REPORTED.values(), ids=REPORTED)
def test_a_variable_that_keeps_a_library_from_being_imported_is_named_in_one_line(
    name: str, value: str, reason: str, tmp_path: Path
) -> None:
    for package, text in (("FOREIGN/google", ""), ("BROKEN/numpy", "print 'Python 2'")):
        (tmp_path / package).mkdir(parents=True)
        (tmp_path / package / "__init__.py").write_text(text)
    value = str(tmp_path / value) if name == "PYTHONPATH" else value
    ended = run("train", *SMALL, directory=tmp_path, environment={name: value})
    assert ended.code == 2 and not ended.left_behind
    # protobuf itself warns.
    line = ended.stderr.splitlines()[-1]
    assert line.startswith("penstock: ") and reason in line and name in line.partition("so unset ")[2]
    assert "Traceback" not in ended.stderr


def test_doctor_names_a_variable_that_keeps_a_library_from_being_imported(tmp_path: Path) -> None:
    ended = run("doctor", directory=tmp_path, environment={"TORCH_LOGS": "nonsense"})
    assert "so unset TORCH_LOGS" in " ".join(ended.stdout.split()) and ended.stderr == ""


def test_a_run_continues_to_its_end_after_its_reader_has_left(tmp_path: Path) -> None:
    with subprocess.Popen(
        [PENSTOCK, "train", *SMALL], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as command:
        assert command.stdout is not None and command.stdout.readline()
        command.stdout.close()
        _, errors = command.communicate(timeout=start_patience_s())
    assert command.returncode == 0
    assert errors.decode() == "penstock: the reader of the output has left; the run continues, and Ctrl-C stops it\n"
    folder = RunFolder(tmp_path / "run")
    assert folder.summary.exists() and folder.learning_curve.exists() and not folder.services.exists()


def test_without_pidfd_open_services_are_commands_and_none_counts_as_dead(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_PIDFD_OPEN)
    ended = run("train", *SMALL, directory=tmp_path, environment={"PYTHONPATH": str(tmp_path)})
    assert ended.code == 0, ended.stderr
    assert ended.stdout.count("template is not usable: pidfd_open") == 1 and "restarting" not in ended.stdout


def test_without_the_functions_that_macos_lacks_a_run_trains_and_takes_snapshots(
    tmp_path: Path,
) -> None:
    (tmp_path / "sitecustomize.py").write_text(NAMES_OF_MACOS)
    options = (
        *SMALL,
        "--replay.folder=store",
        f"--replay.capacity-bytes={2**26}",
        "--checkpoint.snapshot-interval-s=0.2",
    )
    paths = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    ended = run("train", *options, directory=tmp_path, environment={"PYTHONPATH": paths})
    assert ended.code == 0 and "Traceback" not in ended.stderr, ended.stderr
    assert RunFolder(tmp_path / "run").summary.exists()


def test_a_program_that_trains_is_left_no_open_files(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(LEAVING_NOTHING)
    program = (sys.executable, "-W", "error::ResourceWarning", "program.py")
    ended = run(directory=tmp_path, program=program, environment={"PYTHONPATH": os.environ.get("PYTHONPATH", "")})
    assert ended.code == 0, ended.stderr


def test_two_threads_of_a_process_of_a_pool_train_at_the_same_time(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(AT_THE_SAME_TIME)
    ended = run(directory=tmp_path, program=(sys.executable, "program.py"))
    assert (ended.code, ended.left_behind) == (0, []), ended.stderr
    for name in ("run", "run-thread"):
        folder = RunFolder(tmp_path / name)
        assert folder.summary.exists() and folder.learning_curve.exists()


def test_a_run_ends_well_without_shared_memory_home_and_output_and_with_40_open_files(tmp_path: Path) -> None:
    own = ["unshare", "--mount", "true"]
    if os.geteuid() != 0 or not shutil.which(own[0]) or subprocess.run(own, check=False).returncode:
        pytest.skip("only root can have mounts of its own")
    (tmp_path / "made").mkdir()
    program = ("unshare", "--mount", "sh", "-ec", IN_LITTLE, "sh", PENSTOCK)
    ended = run("train", *SMALL, directory=tmp_path, program=program)
    assert (ended.code, ended.left_behind) == (0, [])
    folder = RunFolder(tmp_path / "run")
    assert folder.summary.exists() and folder.learning_curve.exists()
    # Lines written to a closed descriptor would be in the file that was opened next.
    assert len(load_metrics(folder.root).evaluation["return_mean"])

"""NumPy has one thread in Penstock's own processes, and as many as before in those of users."""

import os
import subprocess
import sys

import pytest

from penstock.machine import library_variables
from tests.support.machine.timing import PATIENCE_S
from tests.support.services.processes import WITH_HELPERS

AFTER_A_COMMAND = """
import os, sys
from penstock.cli.main import main
try:
    main(["--version"])
except SystemExit:
    assert "numpy" not in sys.modules
    print(os.environ.get("OPENBLAS_NUM_THREADS"))
"""

AFTER_AN_IMPORT = """
import os, penstock
penstock.Config, penstock.load_policy, penstock.train
print(os.environ.get("OPENBLAS_NUM_THREADS"))
"""

THREADS_OF_NUMPY = """
from pathlib import Path
from penstock.cli.main import main
try:
    main(["--version"])
except SystemExit:
    import numpy
    numpy.ones((600, 600)) @ numpy.ones((600, 600))
    print(len(list(Path("/proc/self/task").iterdir())))
"""

PROCESSORS = """
import os
from penstock.cli.main import main
try:
    main(["--version"])
except SystemExit:
    import torch
    print(len(os.sched_getaffinity(0)))
"""


def last_line(script: str, **variables: str) -> str:
    """Runs a script with these variables, and returns the last line that it prints."""
    kept = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env=kept | WITH_HELPERS | variables,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    return ended.stdout.splitlines()[-1]


def test_a_command_limits_numpy_before_it_is_imported() -> None:
    assert last_line(AFTER_A_COMMAND) == "1"


def test_the_choice_of_a_user_is_kept() -> None:
    assert last_line(AFTER_A_COMMAND, OPENBLAS_NUM_THREADS="3") == "3"


def test_an_import_of_the_library_changes_nothing() -> None:
    assert last_line(AFTER_AN_IMPORT) == "None"


@pytest.mark.skipif(sys.platform != "linux", reason="counts the threads in /proc")
def test_numpy_starts_no_threads_in_a_command() -> None:
    assert last_line(THREADS_OF_NUMPY) == "1"
    # OpenBLAS starts no more threads than there are processors.
    processors = len(os.sched_getaffinity(0))
    assert last_line(THREADS_OF_NUMPY, OPENBLAS_NUM_THREADS="3") == str(min(3, processors))


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="OpenMP pins threads on Linux")
@pytest.mark.skipif(os.cpu_count() == 1, reason="a single processor can't be told from all")
def test_openmp_does_not_pin_a_service_to_one_processor() -> None:
    found = last_line(PROCESSORS, OMP_PROC_BIND="true", OMP_PLACES="threads", GOMP_CPU_AFFINITY="0")
    assert found == str(len(os.sched_getaffinity(0)))


def test_variables_without_a_choice_get_one_thread() -> None:
    variables = {"NUMBA_DISABLE_JIT": "1", "OMP_PROC_BIND": "true", "NUMBA_OPT": "2"}
    library_variables.prepare(variables)
    assert variables == {"OPENBLAS_NUM_THREADS": "1", "NUMBA_OPT": "2"}


def test_hidden_variables_return_after_the_block_even_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "Qt4Agg")
    monkeypatch.delenv("MATPLOTLIBRC", raising=False)
    with pytest.raises(ImportError), library_variables.hidden("MPLBACKEND", "MATPLOTLIBRC"):
        assert "MPLBACKEND" not in os.environ
        raise ImportError
    assert os.environ["MPLBACKEND"] == "Qt4Agg" and "MATPLOTLIBRC" not in os.environ


def test_only_variables_of_imports_that_have_a_value_are_suspects() -> None:
    variables = {"PYTHONPATH": "x", "TORCH_LOGS": "y", "NUMBA_OPT": "", "PYTHONUTF8": "1", "PATH": "z"}
    assert library_variables.suspects(variables) == ["PYTHONPATH", "TORCH_LOGS"]

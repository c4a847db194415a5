import json
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.__main__ import LONG, SHORT, Step, run_all
from tests.support.machine.timing import PATIENCE_S, wait_for
from tests.support.services.processes import is_alive


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


@pytest.mark.nightly
def test_every_step_runs_and_its_output_is_kept_whatever_happened_to_the_others(tmp_path: Path) -> None:
    endless = "import subprocess, sys, time; print('begun', flush=True); subprocess.run(['sleep', '1000'])"
    results = run_all(
        [
            Step("failing", PATIENCE_S, python("print('one'); raise SystemExit(3)")),
            Step("endless", 3.0, python(endless)),
            Step("missing", PATIENCE_S, (str(tmp_path / "nothing"),)),
            Step("last", PATIENCE_S, python("print('here')"), beside=("sleep", "1000")),
        ],
        tmp_path,
    )
    assert [(each.name, each.code) for each in results] == [
        ("failing", 3),
        ("endless", None),
        ("missing", 127),
        ("last", 0),
    ]
    shown = {step.name: (tmp_path / f"{step.name}.txt").read_text() for step in results}
    assert shown["failing"] == "one\n" and shown["endless"] == "begun\n" and shown["last"] == "here\n"
    assert "No such file or directory" in shown["missing"]
    assert [each["name"] for each in json.loads((tmp_path / "summary.json").read_text())] == list(shown)


@pytest.mark.nightly
def test_a_step_ends_with_the_processes_that_it_started(tmp_path: Path) -> None:
    mark = tmp_path / "alive"
    child = f"import os, pathlib, time; pathlib.Path({str(mark)!r}).write_text(str(os.getpid())); time.sleep(1000)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    run_all([Step("parent", 5.0, python(code))], tmp_path)
    wait_for(lambda: not is_alive(int(mark.read_text())), "the end of the process")


def test_the_list_has_a_limit_for_each_step_and_no_name_twice() -> None:
    names = [step.name for step in (*SHORT, *LONG)]
    assert len(set(names)) == len(names)
    assert all(step.limit_s > 0.0 for step in (*SHORT, *LONG))


@pytest.mark.parametrize(
    "step", [step for step in (*SHORT, *LONG) if step.command[1] == "-m"], ids=lambda step: step.name
)
def test_the_programs_of_the_list_exist(step: Step) -> None:
    module = Path(*step.command[2].split("."))
    root = Path(__file__).parents[2]
    if step.command[2].startswith("benchmarks."):
        assert (root / module).with_suffix(".py").is_file()
    else:
        assert step.command[2] in ("penstock", "pytest")

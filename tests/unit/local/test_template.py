"""Services forked from a process that has done their imports."""

import functools
import json
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import penstock
from penstock.local import template_process
from penstock.local.children import Children, service_command
from penstock.local.template import ForkedProcess, Template
from penstock.process.service import SUPERVISED_VARIABLE
from penstock.rpc.health import is_serving
from tests.support.machine.timing import wait_for_run
from tests.support.services.ports import free_ports

LINGERING = """
import atexit
import threading


def linger():
    threading.main_thread().join()
    print("thread ended")


atexit.register(print, "exit handler called")
threading.Thread(target=linger).start()
print("imported", flush=True)
"""


@pytest.fixture(scope="module")
def shared() -> Iterator[Template]:
    with Template() as template:
        yield template


@pytest.fixture
def template(shared: Template) -> Template:
    wait_for_run(lambda: not shared.pending, "the imports")
    return shared


def fork(template: Template, output: Path, *arguments: str, name: str = "a service") -> ForkedProcess:
    with output.open("wb") as file:
        process = template.fork(service_command(*arguments), {SUPERVISED_VARIABLE: name}, [file.fileno()], output)
    assert process is not None
    return process


def end(process: ForkedProcess) -> int:
    wait_for_run(process.has_ended, "the end of the process")
    return process.wait()


def replay_arguments() -> tuple[str, list[str]]:
    """Returns a free address and the arguments of a replay service that listens at it."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    return address, ["replay", "--replay.listen", address, "--replay.metrics-port=0"]


def test_other_commands_and_early_requests_are_not_forked(shared: Template, tmp_path: Path) -> None:
    # This test must run first, while the template is still importing.
    with (tmp_path / "output").open("wb") as file:
        assert shared.fork(service_command("--version"), {}, [file.fileno()], Path(file.name)) is None
        wait_for_run(lambda: not shared.pending, "the imports")
        assert shared.fork(["/bin/true"], {}, [file.fileno()], Path(file.name)) is None


@pytest.mark.nightly
def test_the_template_says_how_far_the_imports_of_each_service_are() -> None:
    services, seen = ("replay", "learner", "actor", "evaluator"), dict[tuple[str, ...], None]()
    with Template() as template:
        wait_for_run(
            lambda: seen.update({tuple(map(template.state_of, services)): None}) or not template.pending, "all"
        )
        seen[tuple(map(template.state_of, services))] = None
    assert next(iter(seen)) == ("loading", "waiting", "waiting", "waiting")
    assert [*seen][-1] == ("loaded",) * 4
    # One at a time, in their order.
    order = ("loaded", "compiling", "loading", "waiting")
    assert all([*state] == sorted(state, key=order.index) for state in seen)
    assert all(sum(each in ("loading", "compiling") for each in state) <= 1 for state in seen)
    with Template() as lost:
        lost._lose()
        assert lost.state_of("replay") == ""


COMPILED = """
import numba

add = numba.njit("int64(int64, int64)")(lambda one, other: one + other)
subtract = numba.njit("int64(int64, int64)")(lambda one, other: one - other)
"""


def test_the_template_says_whose_functions_it_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "compiled_here.py").write_text(COMPILED)
    monkeypatch.setattr(penstock, "__path__", [*penstock.__path__, str(tmp_path)])
    monkeypatch.setattr(template_process, "_MODULES", {"replay": ("errors",), "learner": ("compiled_here",)})
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        template_process._import_all(theirs)
        theirs.close()
        messages = [json.loads(each) for each in iter(lambda: ours.recv(1000), b"")]
    assert messages == [{"loading": "replay"}, {"loading": "learner"}, {"compiling": "learner"}]


def test_a_forked_service_runs_and_ends_like_its_command(template: Template, tmp_path: Path) -> None:
    assert end(fork(template, tmp_path / "output", "--version")) == 0
    assert (tmp_path / "output").read_text().startswith("penstock ")
    assert end(fork(template, tmp_path / "output", "replay", "--no-such-option")) == 2
    assert (tmp_path / "output").read_text().startswith("penstock: ")


def test_a_service_leads_a_group_shows_its_command_and_can_be_signalled(template: Template, tmp_path: Path) -> None:
    address, arguments = replay_arguments()
    process = fork(template, tmp_path / "output", *arguments)
    wait_for_run(lambda: is_serving(address, 1.0), "it serves")
    assert psutil.Process(process.pid).cmdline()[1:4] == ["-Pm", "penstock", "replay"]
    assert psutil.Process(process.pid).num_threads() > 1
    assert not process.has_ended()
    process.send_signal(signal.SIGTERM)
    assert end(process) == 0
    assert '"stopped_by": "SIGTERM"' in (tmp_path / "output").read_text()
    process.send_signal(signal.SIGTERM)


def test_a_service_ends_with_its_standard_input(template: Template, tmp_path: Path) -> None:
    address, arguments = replay_arguments()
    process = fork(template, tmp_path / "output", *arguments)
    # A later service must not keep the input of the first one open.
    other = fork(template, tmp_path / "other", *replay_arguments()[1])
    wait_for_run(lambda: is_serving(address, 1.0), "it serves")
    process.stdin.close()
    assert end(process) == 0
    assert not other.has_ended()
    other.send_signal(signal.SIGKILL)
    assert end(other) == -signal.SIGKILL


def draws_in(output: Path) -> list[tuple[str, str]]:
    return re.findall("draws (.+) (.+)", output.read_text())[:1]


@pytest.mark.nightly
def test_the_global_generators_of_two_services_differ_and_repeat_with_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import random, numpy; print('draws', random.random(), numpy.random.random(), flush=True)"
    (tmp_path / "drawing.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    draws = []
    with Template() as template:
        wait_for_run(lambda: not template.pending, "the imports")
        for index, name in enumerate(("actor-0", "actor-1", "actor-0")):
            output = tmp_path / str(index)
            arguments = ("actor", "--env-id=CartPole-v1", '--environment.imports=["drawing"]', "--actor.metrics-port=0")
            actor = fork(template, output, *arguments, name=name)
            draws += wait_for_run(functools.partial(draws_in, output), "the draws")
            actor.send_signal(signal.SIGKILL)
            end(actor)
    first, other, again = draws
    assert first[0] != other[0]
    assert first[1] != other[1]
    assert again == first


@pytest.mark.nightly
def test_the_end_of_a_service_waits_for_threads_and_runs_exit_handlers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lingering.py").write_text(LINGERING)
    monkeypatch.chdir(tmp_path)
    with Template() as template:
        wait_for_run(lambda: not template.pending, "the imports")
        arguments = ("actor", "--env-id=CartPole-v1", '--environment.imports=["lingering"]', "--actor.metrics-port=0")
        actor = fork(template, tmp_path / "output", *arguments)
        wait_for_run(lambda: "imported" in (tmp_path / "output").read_text(), "its imports")
        actor.send_signal(signal.SIGTERM)
        assert end(actor) == 0
    assert (tmp_path / "output").read_text().splitlines()[-2:] == ["thread ended", "exit handler called"]


def test_without_its_template_a_service_is_restarted_as_a_command(template: Template, tmp_path: Path) -> None:
    address, arguments = replay_arguments()
    with Children(max_restarts=1, template=template) as children:
        children.add("replay", service_command(*arguments), tmp_path / "log")
        child = children.find("replay")
        wait_for_run(lambda: is_serving(address, 1.0), "it serves")
        forked = child.group.pid if child.group else 0
        assert psutil.Process(forked).ppid() == template.pid
        psutil.Process(template.pid).kill()
        assert "restarting" in wait_for_run(children.revive, "the death of the service")[0]
        wait_for_run(lambda: is_serving(address, 1.0), "it serves again")
        # The killed process may not have been reaped yet.
        assert not psutil.pid_exists(forked) or psutil.Process(forked).status() == psutil.STATUS_ZOMBIE
        assert child.group is not None
        assert psutil.Process(child.group.pid).ppid() == psutil.Process().pid
    assert child.exit_code == 0


NO_PIDFD = {
    "the kernel": "def refused(*arguments): raise OSError(38, 'Function not implemented')\nos.pidfd_open = refused",
    "a filter": "def refused(*arguments): raise PermissionError(1, 'Operation not permitted')\nos.pidfd_open = refused",
    "Python": "del os.pidfd_open",
}


@pytest.mark.parametrize(
    ("lacking", "reason"), list(zip(NO_PIDFD, ("not impl", "not permitted", "no attribute"), strict=True))
)
def test_a_template_without_pidfd_open_says_so_and_forks_nothing(
    lacking: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import os\n{NO_PIDFD[lacking]}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Template() as template:
        wait_for_run(lambda: not template.pending, "the reason")
        assert template.unusable.startswith(
            "services load one by one, because their template is not usable: pidfd_open: "
        )
        assert reason in template.unusable and "\n" not in template.unusable
        with (tmp_path / "output").open("wb") as file:
            assert template.fork(service_command("--version"), {}, [file.fileno()], Path(file.name)) is None


@pytest.mark.nightly
def test_a_template_that_dies_before_it_is_ready_says_so_and_an_ordinary_one_says_nothing(
    template: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not template.unusable
    (tmp_path / "numba.py").write_text("raise ImportError\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Template() as dying:
        wait_for_run(lambda: not dying.pending, "the end of the process")
        assert dying.unusable.endswith("not usable: it has ended")

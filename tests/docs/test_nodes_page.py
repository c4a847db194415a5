"""The commands of docs/nodes.md start a run on two hosts, which learns CartPole and ends all of them."""

import json
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.runs.folder import RunFolder
from tests.docs.pages import ROOT, blocks, commands_of
from tests.support.services.link import Host, unavailable
from tests.support.services.processes import Command, end_of

ADDRESS = "10.0.0.1"
TEXTS = [block.text for block in blocks(ROOT / "docs" / "nodes.md") if "penstock" in block.text]
UNTRAINED = 100
"""More than policies without training get in CartPole, which is about 20."""
SERVICES = ["replay", "learner", "evaluator", "actor"]


@pytest.fixture
def host() -> Iterator[Host]:
    if reason := unavailable():
        pytest.skip(reason)
    with Host() as host:
        yield host


def arguments_of(texts: list[str]) -> list[list[str]]:
    """Returns the arguments of these blocks' commands, which are of all services."""
    arguments = [shlex.split(command)[1:] for text in texts for command in commands_of(text)]
    assert [service for service, *_ in arguments] == SERVICES
    return arguments


def train(arguments: list[list[str]], there: Host, folder: Path) -> None:
    """Runs the actor on this host and the others on another one, and checks that the run ends all of them."""
    with ExitStack() as stack:
        started = [
            stack.enter_context(Command(*each, directory=folder, host=None if each[0] == "actor" else there))
            for each in arguments
        ]
        ended = [end_of(command) for command in started]
    assert [each.code for each in ended] == [0] * len(ended), "\n".join(each.stderr[-1_000:] for each in ended)
    summary = json.loads(RunFolder(folder / "runs" / "first").summary.read_text())
    assert summary["stopped"] == "total_steps" and summary["evaluation"]["return_mean"] > UNTRAINED, summary


@pytest.mark.nightly
def test_the_commands_with_addresses_train_on_two_hosts(host: Host, tmp_path: Path) -> None:
    arguments = arguments_of([text for text in TEXTS if ADDRESS in text])
    address = host.link().there
    train([[option.replace(ADDRESS, address) for option in each] for each in arguments], host, tmp_path)


@pytest.mark.nightly
def test_the_commands_with_files_train_on_two_hosts(host: Host, tmp_path: Path) -> None:
    arguments = arguments_of([text for text in TEXTS if "--replay.address-file" in text])
    # The hosts of this test have one name, which leads each of them to itself.
    address = host.link().there
    named = [
        [*each, f"--{each[0]}.advertise={address}"] if each[0] in ("replay", "learner") else each for each in arguments
    ]
    train(named, host, tmp_path)

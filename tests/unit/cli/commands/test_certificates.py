"""`penstock certificates` makes and renews the certificates of a run, and says what to do with them."""

import shlex
import time
from pathlib import Path

import pytest

from penstock.cli.commands.certificates import command
from penstock.cli.main import _run
from penstock.config import Config
from penstock.errors import ConfigurationError
from penstock.process.own_certificate import credentials_of
from penstock.runs.folder import RunFolder
from penstock.security.authority import files_of, run_of
from penstock.security.certificate import Certificate, read
from penstock.security.roles import ROLES, Role, run_name_of


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def certificate(run: Path, role: Role) -> Certificate:
    return read(files_of(RunFolder(run).certificates / role), role, now=time.time())


def states(output: str) -> dict[str, str]:
    return {words[0]: words[1] for words in map(str.split, output.splitlines()) if words[0] in ROLES}


def test_a_line_for_each_role_names_its_file_and_its_end(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["certificates", "runs/Blue_1", "--days", "10"]) == 0
    *lines, setting, key, renewal = capsys.readouterr().out.splitlines()
    end = time.strftime("%Y-%m-%d", time.gmtime(time.time() + 10 * 86_400))
    for role, line in zip(ROLES, lines, strict=True):
        assert line.startswith(f"{role} ")
        assert f"new   until {end} " in line
        assert line.endswith(f" runs/Blue_1/certificates/{role}/certificate.pem")
        assert certificate(folder / "runs" / "Blue_1", role).identity.run == run_name_of("Blue_1")
    assert "runs/Blue_1/certificates/authority-key.pem" in key
    assert "by themselves" in renewal
    # The setting is the one that a service reads.
    option, path = shlex.split(setting)[-2:]
    assert option == "--certificate"
    found = credentials_of(Config(certificate=path).security, "actor")
    assert found is not None
    assert found.identity.role == "actor"


def test_repeated_it_keeps_them_and_the_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(["a", "--name", "blue"])
    assert set(states(capsys.readouterr().out).values()) == {"new"}
    command(["a"])
    output = capsys.readouterr().out
    assert states(output) == dict.fromkeys(ROLES, "kept")
    assert "by themselves" not in output
    assert run_of(folder / "a" / "certificates") == "blue"
    command(["a", "--renew"])
    assert set(states(capsys.readouterr().out).values()) == {"new"}


def test_a_run_is_found_by_its_name_and_a_similar_name_is_another_run(folder: Path) -> None:
    (folder / "runs" / "cartpole-1").mkdir(parents=True)
    command(["cartpole-1"])
    assert run_of(folder / "runs" / "cartpole-1" / "certificates") == "cartpole-1"
    command(["cartpole-2"])
    assert run_of(folder / "cartpole-2" / "certificates") == "cartpole-2"
    assert {path.name for path in (folder / "runs" / "cartpole-1").iterdir()} == {"certificates"}
    assert RunFolder(Path("cartpole-2")).certificates in RunFolder(Path("cartpole-2")).everything()


def test_a_name_that_an_earlier_release_cut_is_kept_and_reported(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = "cartpole-sweep-lr-0.001-batch-512-seed-0001"
    cut = "cartpole-sweep-lr-0-001-batch-512-seed-0"
    command([run, "--name", cut])
    capsys.readouterr()
    command([run])
    output = capsys.readouterr().out
    assert set(states(output).values()) == {"kept"}
    assert f"the certificates name the run {cut}, which is cut from the folder's name" in output
    command([run.replace("0001", "0002")])
    assert "which is cut" not in capsys.readouterr().out
    assert run_of(folder / run.replace("0001", "0002") / "certificates").startswith("cartpole-sweep-lr-0-001-batch-5-")


def test_the_current_folder_has_a_name(folder: Path) -> None:
    (folder / "here").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder / "here")
        command(["."])
    assert run_of(folder / "here" / "certificates") == "here"


def test_hosts_are_added_to_the_certificate_of_their_role(folder: Path) -> None:
    command(["a", "--host", "replay=node1", "--host", "replay=10.0.0.1", "--host", "learner=node2"])
    assert certificate(folder / "a", "replay").names == ("replay.a.penstock", "node1", "10.0.0.1")
    assert certificate(folder / "a", "learner").names == ("learner.a.penstock", "node2")
    assert certificate(folder / "a", "actor").names == ("actor.a.penstock",)


def test_a_new_authority_makes_all_certificates_new(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(["a"])
    capsys.readouterr()
    command(["a", "--new-authority"])
    assert set(states(capsys.readouterr().out).values()) == {"new"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: RUN"),
        (["a", "--days", "x"], "invalid int value: 'x'"),
        (["a", "--days", "0"], "certificates can't be valid for 0 days"),
        (["a", "--name", "A"], "the run's name 'A' can't be part of a DNS name"),
        (
            ["a", "--host", "node1"],
            "--host must be ROLE=HOST, such as replay=node1.example.org, with a role of actor, ",
        ),
        (["a", "--host", "replay="], "got 'replay='"),
        (["a", "--host", "owner=node1"], "got 'owner=node1'"),
        (["a", "--host", "replay=node1:7431"], "'node1:7431' is not a host"),
        (["a", "--renw"], "did you mean --renew?"),
        (["é"], "'é' has no letters or digits"),
    ],
)
def test_a_mistake_gives_one_line_and_makes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert _run(["certificates", *arguments]) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.err.count("\n") == 1
    assert output.out == ""
    assert list(folder.iterdir()) == []


def test_another_name_is_refused(folder: Path) -> None:
    command(["a"])
    with pytest.raises(ConfigurationError, match="has the certificates of run a, not of run b"):
        command(["a", "--name", "b"])

"""Credentials: renewed files are taken, and unusable ones never replace what works."""

import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from penstock.errors import ConfigurationError, Unavailable
from penstock.security.authority import issue
from penstock.security.certificate import Files
from penstock.security.credentials import Credentials
from penstock.security.roles import Identity
from tests.support.services.certificates import DAY_S, RUN, Foreign, authority, certificates_of, write


def renewed(folder: Path) -> Files:
    """Makes new certificates, and returns the files of the replay service."""
    issue(folder, RUN, days=60, hosts={}, now=time.time(), renew=True)
    return certificates_of(folder)["replay"]


def test_unusable_files_are_refused_at_the_start(tmp_path: Path) -> None:
    files = certificates_of(tmp_path)["actor"]
    with pytest.raises(ConfigurationError, match="the role replay was started with it"):
        Credentials(files, "replay")


def test_only_changed_files_are_read_again(tmp_path: Path) -> None:
    readings = 0

    def clock() -> float:
        nonlocal readings
        readings += 1
        return time.time()

    credentials = Credentials(certificates_of(tmp_path)["replay"], "replay", clock=clock)
    before = credentials.current
    assert not credentials.refreshed()
    assert credentials.current is before
    assert readings == 1
    renewed(tmp_path)
    assert credentials.refreshed()
    assert not credentials.refreshed()
    assert readings == 2
    assert credentials.identity == Identity(RUN, "replay")


def test_renewed_files_are_taken_once(tmp_path: Path) -> None:
    files = certificates_of(tmp_path)["replay"]
    credentials = Credentials(files, "replay")
    before = credentials.current
    renewed(tmp_path)
    assert credentials.refreshed()
    assert credentials.current.certificate_pem == files.certificate.read_bytes() != before.certificate_pem
    assert credentials.current.key_pem == files.key.read_bytes() != before.key_pem
    assert credentials.problem == ""
    assert not credentials.refreshed()


def test_a_pair_of_which_only_one_file_is_replaced_is_not_taken(tmp_path: Path) -> None:
    files = certificates_of(tmp_path / "now")["replay"]
    credentials = Credentials(files, "replay")
    before = credentials.current
    shutil.copytree(tmp_path / "now", tmp_path / "later")
    later = renewed(tmp_path / "later")
    shutil.copy(later.key, files.key)
    assert not credentials.refreshed()
    assert credentials.current is before
    assert credentials.problem.startswith(f"{files.key} is not the key of {files.certificate}; ")
    shutil.copy(later.certificate, files.certificate)
    assert credentials.refreshed()
    assert credentials.problem == ""


@pytest.mark.parametrize("name", ["certificate", "key", "authority"])
def test_a_file_that_is_removed_or_half_written_is_not_taken(tmp_path: Path, name: str) -> None:
    files = certificates_of(tmp_path)["replay"]
    credentials = Credentials(files, "replay")
    path: Path = getattr(files, name)
    content = path.read_bytes()
    path.write_bytes(content[:100])
    assert not credentials.refreshed()
    assert credentials.problem.startswith(f"{path} holds no ")
    path.unlink()
    assert not credentials.refreshed()
    assert credentials.problem.startswith(f"can't read {path}: ")
    path.touch(0o600)
    path.write_bytes(content)
    # The same content as before is no change.
    assert not credentials.refreshed()
    assert credentials.problem == ""


def test_a_certificate_of_another_run_is_not_taken(tmp_path: Path) -> None:
    files = certificates_of(tmp_path / "a")["replay"]
    credentials = Credentials(files, "replay")
    shutil.rmtree(tmp_path / "a")
    shutil.copytree(Path(certificates_of(tmp_path / "b", "green")["replay"].key).parent, files.key.parent)
    assert not credentials.refreshed()
    assert "now belongs to the replay of run green, but this is the replay of run blue" in credentials.problem
    assert credentials.identity == Identity(RUN, "replay")


def test_a_certificate_of_another_role_is_not_taken(tmp_path: Path) -> None:
    every = certificates_of(tmp_path)
    credentials = Credentials(every["replay"], "replay")
    for name in ("certificate", "key"):
        shutil.copy(getattr(every["actor"], name), getattr(every["replay"], name))
    assert not credentials.refreshed()
    assert credentials.problem.startswith(f"{every['replay'].certificate} is the certificate of the actor of run {RUN}")


def test_a_certificate_that_becomes_valid_is_taken_then(tmp_path: Path) -> None:
    root, now = authority(), time.time()
    files = write(tmp_path, [Foreign().signed_by(root)], root)
    credentials = Credentials(files, "replay", clock=lambda: now)
    write(tmp_path, [Foreign(begin=1.0).signed_by(root)], root)
    assert not credentials.refreshed()
    assert "is valid from" in credentials.problem
    now += 2 * DAY_S
    assert credentials.refreshed()


def test_files_replaced_by_a_link_are_noticed(tmp_path: Path) -> None:
    # As Kubernetes replaces a secret: the files are links into a folder that is itself a link, which is exchanged.
    certificates_of(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    renewed(tmp_path / "two")
    (tmp_path / "data").symlink_to("one/replay")
    files = Files(*(tmp_path / name for name in ("certificate.pem", "key.pem", "authority.pem")))
    for path in (files.certificate, files.key, files.authority):
        path.symlink_to(Path("data") / path.name)
    credentials = Credentials(files, "replay")
    (tmp_path / "next").symlink_to("two/replay")
    (tmp_path / "next").rename(tmp_path / "data")
    assert credentials.refreshed()


def test_an_expired_certificate_is_reported_with_the_remedy(tmp_path: Path) -> None:
    files = certificates_of(tmp_path)["replay"]
    credentials = Credentials(files, "replay")
    credentials.check(time.time())
    with pytest.raises(Unavailable) as caught:
        credentials.check(time.time() + 91 * DAY_S)
    message = str(caught.value)
    assert message.startswith(f"{files.certificate} expired at 2")
    assert message.endswith("; a renewed one is read by itself; renew it with penstock certificates RUN --renew")
    files.certificate.write_text("nothing")
    credentials.refreshed()
    with pytest.raises(Unavailable, match=r"; its present content can't be used: \S+ holds no certificate"):
        credentials.check(time.time() + 91 * DAY_S)


def test_an_expired_authority_is_reported(tmp_path: Path) -> None:
    root = authority(end=10.0)
    files = write(tmp_path, [Foreign().signed_by(root)], root)
    with pytest.raises(Unavailable, match=rf"^{files.authority} expired at "):
        Credentials(files, "replay").check(time.time() + 11 * DAY_S)


def test_a_server_needs_the_name_of_its_role(tmp_path: Path) -> None:
    Credentials(certificates_of(tmp_path)["replay"], "replay").check_server(["10.0.0.1"])
    root = authority()
    foreign = write(tmp_path / "foreign", [Foreign().signed_by(root)], root)
    with pytest.raises(
        ConfigurationError,
        match=r"is valid for replay\.example\.org, and not for replay\.blue\.penstock, .*\.server_names to address$",
    ):
        Credentials(foreign, "replay").check_server(["replay.example.org"])


def test_by_address_a_server_needs_every_host_that_it_advertises(tmp_path: Path) -> None:
    root = authority()
    files = write(tmp_path, [Foreign(names=("*.example.org", "10.0.0.1")).signed_by(root)], root)
    credentials = Credentials(files, "replay", by_address=True)
    credentials.check_server(["node1.example.org", "10.0.0.1"])
    credentials.check_server([])
    with pytest.raises(ConfigurationError, match=r"and not for node1, 10\.0\.0\.2, which .*\.server_names to role$"):
        credentials.check_server(["node1.example.org", "node1", "10.0.0.2"])


def test_threads_that_refresh_while_files_change_see_matching_pairs(tmp_path: Path) -> None:
    files = certificates_of(tmp_path)["replay"]
    credentials, done = Credentials(files, "replay"), threading.Event()
    taken, mismatched = [0, 0, 0], [False]

    def refresh(number: int) -> None:
        while not done.is_set():
            taken[number] += credentials.refreshed()
            current = credentials.current
            copy = write_copy(tmp_path / f"copy-{number}", current.certificate_pem, current.key_pem, files)
            mismatched[0] |= Credentials(copy, "replay").current.key_pem != current.key_pem

    threads = [threading.Thread(target=refresh, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        renewed(tmp_path)
    done.set()
    for thread in threads:
        thread.join()
    credentials.refreshed()
    assert credentials.current.certificate_pem == files.certificate.read_bytes()
    assert not mismatched[0]
    assert sum(taken) >= 1


def write_copy(folder: Path, certificate: bytes, key: bytes, files: Files) -> Files:
    folder.mkdir(exist_ok=True)
    copy = Files(folder / "certificate.pem", folder / "key.pem", files.authority)
    copy.certificate.write_bytes(certificate)
    copy.key.touch(0o600)
    copy.key.write_bytes(key)
    return copy


def test_a_key_that_becomes_readable_to_others_is_not_taken(tmp_path: Path) -> None:
    files = certificates_of(tmp_path)["replay"]
    credentials = Credentials(files, "replay")
    later = time.time_ns() + 10**9
    files.key.chmod(0o644)
    os.utime(files.key, ns=(later, later))
    assert not credentials.refreshed()
    assert credentials.problem.startswith(f"other users can use the key {files.key}")

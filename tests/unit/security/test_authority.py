"""The certificates that Penstock makes: their contents, what TLS accepts, and how they are replaced."""

import errno
import itertools
import os
import shutil
import ssl
import stat
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest
from cryptography import x509

from penstock.errors import ConfigurationError
from penstock.security.authority import DAYS, Issued, files_of, issue, run_of
from penstock.security.certificate import Files, expiry_of, read
from penstock.security.roles import ROLES, SERVERS, Identity, Role
from tests.support.services.certificates import DAY_S, RUN, certificates_of


def make(
    folder: Path,
    *,
    in_days: float = 0.0,
    days: int = DAYS,
    hosts: Mapping[Role, Sequence[str]] | None = None,
    renew: bool = False,
    new_authority: bool = False,
) -> dict[Role, Issued]:
    issued = issue(
        folder,
        RUN,
        days=days,
        hosts=hosts or {},
        now=time.time() + in_days * DAY_S,
        renew=renew,
        new_authority=new_authority,
    )
    return {each.identity.role: each for each in issued}


def new_roles(issued: Mapping[Role, Issued]) -> set[Role]:
    return {role for role, each in issued.items() if each.is_new}


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Handshakes, by OpenSSL and without the code that reads certificates


def context(files: Files, side: int) -> ssl.SSLContext:
    made = ssl.SSLContext(side)
    made.load_cert_chain(files.certificate, files.key)
    made.load_verify_locations(files.authority)
    made.verify_mode = ssl.CERT_REQUIRED
    return made


def handshake(server: Files, client: Files, name: str = f"replay.{RUN}.penstock") -> ssl.SSLObject:
    """Returns the server's end of a connection on which both sides have verified each other; raises `ssl.SSLError`."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        context(client, ssl.PROTOCOL_TLS_CLIENT).wrap_bio(to_client, to_server, server_hostname=name),
        context(server, ssl.PROTOCOL_TLS_SERVER).wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = ends
    while waiting:
        waiting = [end for end in waiting if not is_done(end)]
    return ends[1]


def is_done(end: ssl.SSLObject) -> bool:
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def test_both_sides_of_a_connection_verify_each_other(tmp_path: Path) -> None:
    files = certificates_of(tmp_path)
    peer = handshake(files["replay"], files["actor"]).getpeercert()
    assert peer is not None
    assert ("URI", f"penstock://{RUN}/actor") in peer["subjectAltName"]


def test_every_role_can_call_every_server(tmp_path: Path) -> None:
    files = certificates_of(tmp_path)
    for server, client in itertools.product(SERVERS, ROLES):
        handshake(files[server], files[client], f"{server}.{RUN}.penstock")


def test_the_certificate_of_another_authority_is_refused_on_both_sides(tmp_path: Path) -> None:
    files, others = certificates_of(tmp_path / "a"), certificates_of(tmp_path / "b")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(files["replay"], others["actor"])
    # A client that trusts both authorities, so that only the server refuses.
    trusting = others["actor"]
    trusting.authority.write_bytes(trusting.authority.read_bytes() + files["replay"].authority.read_bytes())
    with pytest.raises(ssl.SSLError, match=r"(?i)certificate verify failed"):
        handshake(files["replay"], trusting)


def test_a_server_with_the_name_of_another_role_or_run_is_refused(tmp_path: Path) -> None:
    files = certificates_of(tmp_path)
    for name in (f"learner.{RUN}.penstock", "replay.green.penstock", "replay"):
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            handshake(files["replay"], files["actor"], name)


def test_an_actor_can_not_act_as_a_server(tmp_path: Path) -> None:
    files = certificates_of(tmp_path)
    with pytest.raises(ssl.SSLError, match=r"(?i)purpose|certificate"):
        handshake(files["actor"], files["learner"], f"actor.{RUN}.penstock")


def test_further_hosts_are_names_of_the_server(tmp_path: Path) -> None:
    issued = make(tmp_path, hosts={"replay": ["node1.example.org", "10.0.0.1", "fd00::1", "*.example.net"]})
    for name in ("node1.example.org", "10.0.0.1", "fd00::1", "a.example.net", f"replay.{RUN}.penstock"):
        handshake(issued["replay"].files, issued["actor"].files, name)


def test_a_service_can_not_sign_for_others(tmp_path: Path) -> None:
    for role, files in certificates_of(tmp_path).items():
        leaf = x509.load_pem_x509_certificate(files.certificate.read_bytes())
        assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        assert not (files.certificate.parent / "authority-key.pem").exists(), role
    root = x509.load_pem_x509_certificate((tmp_path / "authority.pem").read_bytes())
    assert root.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0
    assert root.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_openssl_verifies_certificates_strictly(tmp_path: Path) -> None:
    # -x509_strict: the rules of RFC 5280, which some TLS libraries enforce.
    for role, files in certificates_of(tmp_path).items():
        for purpose in ("sslclient", *(["sslserver"] if role in SERVERS else [])):
            command = ["openssl", "verify", "-x509_strict", "-purpose", purpose, "-CAfile", str(files.authority)]
            subprocess.run([*command, str(files.certificate)], check=True, capture_output=True)


# Files


def test_files_are_the_users_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        make(tmp_path / "certificates")
    finally:
        os.umask(old)
    for path in [tmp_path / "certificates", *(tmp_path / "certificates").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert run_of(tmp_path / "certificates") == RUN
    assert run_of(tmp_path) == ""


def test_certificates_are_valid_from_an_hour_before_until_their_days_have_passed(tmp_path: Path) -> None:
    now = int(time.time())
    for each in issue(tmp_path, RUN, days=5, hosts={}, now=now):
        leaf = x509.load_pem_x509_certificate(each.files.certificate.read_bytes())
        assert leaf.not_valid_before_utc.timestamp() == now - 3600
        assert leaf.not_valid_after_utc.timestamp() == each.expires == now + 5 * DAY_S
    assert expiry_of((tmp_path / "authority.pem").read_bytes()) == now + 3652 * DAY_S


def test_no_certificate_outlives_its_authority(tmp_path: Path) -> None:
    make(tmp_path)
    issued = make(tmp_path, in_days=2000.0, days=3000, renew=True)
    assert {each.expires for each in issued.values()} == {expiry_of((tmp_path / "authority.pem").read_bytes())}


# Repetition


def test_repeated_it_changes_nothing(tmp_path: Path) -> None:
    assert new_roles(make(tmp_path)) == set(ROLES)
    before = contents(tmp_path)
    assert new_roles(make(tmp_path, in_days=59.0)) == set()
    assert contents(tmp_path) == before


def test_certificates_with_less_than_a_third_of_their_life_left_are_replaced(tmp_path: Path) -> None:
    make(tmp_path)
    authority = (tmp_path / "authority.pem").read_bytes()
    assert new_roles(make(tmp_path, in_days=61.0)) == set(ROLES)
    assert (tmp_path / "authority.pem").read_bytes() == authority
    # Expired ones, too.
    assert new_roles(make(tmp_path, in_days=1000.0)) == set(ROLES)


@pytest.mark.parametrize("name", ["certificate", "key", "authority"])
@pytest.mark.parametrize("content", [None, b"", "other"])
def test_only_what_is_missing_or_damaged_is_replaced(tmp_path: Path, name: str, content: bytes | str | None) -> None:
    issued = make(tmp_path)
    path: Path = getattr(issued["actor"].files, name)
    if content is None:
        path.unlink()
    else:
        other: Path = getattr(issued["learner"].files, name)
        path.write_bytes(other.read_bytes() if isinstance(content, str) else content)
    again = make(tmp_path)
    assert new_roles(again) == (set() if name == "authority" else {"actor"})
    for role, each in again.items():
        assert read(each.files, role, now=time.time()).identity == Identity(RUN, role)
    handshake(again["replay"].files, again["actor"].files)


def test_on_request_all_certificates_are_replaced(tmp_path: Path) -> None:
    before = make(tmp_path)
    keys = {role: each.files.key.read_bytes() for role, each in before.items()}
    assert new_roles(make(tmp_path, renew=True)) == set(ROLES)
    assert all(each.files.key.read_bytes() != keys[role] for role, each in before.items())


def test_hosts_are_added_and_kept(tmp_path: Path) -> None:
    def names(in_days: float = 0.0) -> tuple[str, ...]:
        return read(files_of(tmp_path / "replay"), "replay", now=time.time() + in_days * DAY_S).names

    own = f"replay.{RUN}.penstock"
    make(tmp_path)
    assert names() == (own,)
    assert new_roles(make(tmp_path, hosts={"replay": ["node1"]})) == {"replay"}
    assert names() == (own, "node1")
    assert new_roles(make(tmp_path, hosts={"replay": ["node1"]})) == set()
    make(tmp_path, hosts={"replay": ["10.0.0.1"]}, renew=True)
    assert names() == (own, "node1", "10.0.0.1")
    # Also after it has expired.
    make(tmp_path, in_days=100.0)
    assert names(100.0) == (own, "node1", "10.0.0.1")


def test_a_role_does_not_get_the_hosts_of_another(tmp_path: Path) -> None:
    issued = make(tmp_path, hosts={"replay": ["node1"]})
    issued["actor"].files.certificate.write_bytes(issued["replay"].files.certificate.read_bytes())
    again = make(tmp_path)
    assert new_roles(again) == {"actor"}
    assert read(again["actor"].files, "actor", now=time.time()).names == (f"actor.{RUN}.penstock",)


def test_commands_at_the_same_time_leave_matching_files(tmp_path: Path) -> None:
    threads = [threading.Thread(target=make, args=(tmp_path,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    before = contents(tmp_path)
    assert new_roles(make(tmp_path)) == set()
    assert contents(tmp_path) == before


# The authority


def verified(servers: Iterable[Files], clients: Iterable[Files]) -> bool:
    try:
        for server, client in itertools.product(servers, clients):
            handshake(server, client)
    except ssl.SSLError:
        return False
    return True


def copied(folder: Path, to: Path) -> tuple[Files, Files]:
    """Returns copies of the files of the replay service and the actor, as hosts have them."""
    for role in ("replay", "actor"):
        for path in (folder / role).iterdir():
            (to / role).mkdir(parents=True, exist_ok=True)
            copy = to / role / path.name
            copy.touch(0o600)
            copy.write_bytes(path.read_bytes())
    return files_of(to / "replay"), files_of(to / "actor")


def test_a_new_authority_revokes_everything_before(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    make(folder, hosts={"replay": ["node1"]})
    server, client = copied(folder, tmp_path / "old")
    issued = make(folder, new_authority=True)
    assert new_roles(issued) == set(ROLES)
    assert verified([issued["replay"].files], [issued["actor"].files])
    assert not verified([issued["replay"].files], [client])
    assert not verified([server], [issued["actor"].files])
    assert read(issued["replay"].files, "replay", now=time.time()).names == (f"replay.{RUN}.penstock", "node1")
    assert new_roles(make(folder)) == set()


def test_an_expired_authority_signs_nothing(tmp_path: Path) -> None:
    make(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(ConfigurationError, match=r"authority\.pem expired at .* UTC; make a new authority with --new-"):
        make(tmp_path, in_days=4000.0)
    assert contents(tmp_path) == before
    assert new_roles(make(tmp_path, in_days=4000.0, new_authority=True)) == set(ROLES)


def test_a_folder_with_an_older_authority_that_is_still_trusted_is_used_as_it_is(tmp_path: Path) -> None:
    """Earlier releases replaced an authority in steps, and a run may have ended between two of them."""
    former, folder = tmp_path / "former", tmp_path / "run"
    make(former)
    make(folder)
    bundle = (folder / "authority.pem").read_bytes() + (former / "authority.pem").read_bytes()
    (folder / "authority.pem").write_bytes(bundle)
    (folder / "actor" / "certificate.pem").write_bytes((former / "actor" / "certificate.pem").read_bytes())
    (folder / "actor" / "key.pem").write_bytes((former / "actor" / "key.pem").read_bytes())
    issued = make(folder)
    assert new_roles(issued) == set()
    assert verified([issued["replay"].files], [issued["actor"].files])
    issued = make(folder, renew=True)
    assert verified([issued["replay"].files], [issued["actor"].files])


def test_without_the_authoritys_key_valid_certificates_are_kept(tmp_path: Path) -> None:
    make(tmp_path)
    key = tmp_path / "authority-key.pem"
    key.rename(tmp_path / "elsewhere")
    assert new_roles(make(tmp_path)) == set()
    with pytest.raises(ConfigurationError, match=rf"^the key of the authority, {key}, is missing; restore it, or make"):
        make(tmp_path, renew=True)
    assert new_roles(make(tmp_path, new_authority=True)) == set(ROLES)


@pytest.mark.parametrize("written", [0, 1])
def test_a_new_authority_that_can_not_be_written_revokes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    issued = make(tmp_path)
    fsync, left = os.fsync, [written]

    def full(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            if not left[0]:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            left[0] -= 1
        fsync(descriptor)

    with monkeypatch.context() as disk, pytest.raises(ConfigurationError, match="can't write certificates in"):
        disk.setattr(os, "fsync", full)
        make(tmp_path, new_authority=True)
    handshake(issued["replay"].files, issued["actor"].files)
    assert new_roles(make(tmp_path)) == set()
    assert new_roles(make(tmp_path, new_authority=True)) == set(ROLES)


def test_authorities_of_a_run_have_different_names(tmp_path: Path) -> None:
    names = []
    for _ in range(2):
        make(tmp_path, new_authority=True)
        names.append(x509.load_pem_x509_certificate((tmp_path / "authority.pem").read_bytes()).subject)
    assert names[0] != names[1]


@pytest.mark.parametrize("content", [b"", b"text"])
def test_a_damaged_key_of_the_authority_is_reported(tmp_path: Path, content: bytes) -> None:
    make(tmp_path)
    (tmp_path / "authority-key.pem").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"authority-key\.pem holds no usable key; restore it"):
        make(tmp_path, renew=True)


def test_the_key_of_another_authority_is_reported(tmp_path: Path) -> None:
    make(tmp_path / "a")
    make(tmp_path / "b")
    (tmp_path / "b" / "authority-key.pem").rename(tmp_path / "a" / "authority-key.pem")
    with pytest.raises(ConfigurationError, match=r"authority-key\.pem is not the key of an authority in "):
        make(tmp_path / "a", renew=True)


# Refusals


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(ConfigurationError, match=r"has the certificates of run blue, not of run green; choose another"):
        issue(tmp_path, "green", days=DAYS, hosts={}, now=time.time())


@pytest.mark.parametrize("days", [-1, 0, 3651])
def test_days_out_of_bounds_are_refused(tmp_path: Path, days: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"valid for {days} days; choose 1 to 3,650 days$"):
        make(tmp_path / "x", days=days)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("host", ["", "a b", "node1:7431", "https://a", "a..b", "a*.b", "-a", "ä", "a" * 254, "[::1]"])
def test_what_is_no_host_is_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is not a host; name a DNS name such as"):
        make(tmp_path / "x", hosts={"replay": [host]})
    assert not (tmp_path / "x").exists()


def test_a_name_that_is_no_label_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="can't be part of a DNS name"):
        issue(tmp_path / "x", "A", days=DAYS, hosts={}, now=time.time())


def test_a_folder_that_can_not_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"^can't write certificates in \S+/file/x: .*choose another folder$"):
        make(tmp_path / "file" / "x")

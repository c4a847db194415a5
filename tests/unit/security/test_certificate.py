"""Reading of certificates: what is accepted, and the line for each fault."""

import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigurationError
from penstock.security.certificate import Files, covers, expiry_of, identity_of, read
from penstock.security.roles import Identity, Role
from tests.support.machine.other_user import NOBODY
from tests.support.services.certificates import BOTH, DAY_S, RUN, Foreign, authority, certificates_of, write


def refusal(files: Files, expected: Role | None = "replay", *, in_days: float = 0.0) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read(files, expected, now=time.time() + in_days * DAY_S)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_certificate_is_read_with_all_that_it_states(tmp_path: Path) -> None:
    root = authority(end=300.0)
    pair = Foreign(names=("*.example.org", "10.0.0.1", "fd00::1")).signed_by(root)
    found = read(write(tmp_path, [pair], root), "replay", now=time.time())
    assert found.identity == Identity(RUN, "replay")
    assert found.names == ("*.example.org", "10.0.0.1", "fd00::1")
    assert found.expires == pytest.approx(time.time() + 30 * DAY_S, abs=60.0)
    assert found.authority_expires == pytest.approx(time.time() + 300 * DAY_S, abs=60.0)
    assert (found.certificate_pem, found.key_pem, found.authority_pem) == (pair.pem, pair.key_pem, root.pem)
    assert "PRIVATE" not in repr(found)
    assert identity_of(pair.pem) == found.identity
    assert expiry_of(pair.pem) == found.expires


def test_any_role_is_accepted_if_none_is_expected(tmp_path: Path) -> None:
    for role, files in certificates_of(tmp_path).items():
        assert read(files, None, now=time.time()).identity.role == role


@pytest.mark.parametrize("name", ["certificate", "key", "authority"])
def test_a_missing_or_unreadable_file_is_named(tmp_path: Path, name: str) -> None:
    files = certificates_of(tmp_path)["replay"]
    path: Path = getattr(files, name)
    path.rename(tmp_path / "aside")
    assert f"can't read {path}: No such file or directory; make it with penstock certificates RUN" in refusal(files)
    path.mkdir(mode=0o700)
    assert f"can't read {path}: Is a directory" in refusal(files)


@pytest.mark.parametrize("name", ["certificate", "key", "authority"])
@pytest.mark.parametrize("content", [b"", b"text", b"\xff\x00", b"-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_a_file_that_is_not_in_pem_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    files = certificates_of(tmp_path)["replay"]
    path: Path = getattr(files, name)
    path.write_bytes(content)
    assert refusal(files).startswith(f"{path} holds no ")


@pytest.mark.parametrize("name", ["certificate", "key", "authority"])
def test_half_a_file_is_refused(tmp_path: Path, name: str) -> None:
    files = certificates_of(tmp_path)["replay"]
    path: Path = getattr(files, name)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert refusal(files).startswith(f"{path} holds no ")


# The key


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610])
def test_a_key_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    files = certificates_of(tmp_path)["replay"]
    files.key.chmod(mode)
    assert refusal(files).startswith(
        f"other users can use the key {files.key}, whose mode is {mode:04o} and must be 06"
    )
    # The same by a link, whose own mode has no meaning.
    link = tmp_path / "link"
    link.symlink_to(files.key)
    assert f"mode is {mode:04o}" in refusal(Files(files.certificate, link, files.authority))
    files.key.chmod(0o400)
    read(Files(files.certificate, link, files.authority), "replay", now=time.time())


def test_a_key_of_another_user_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    files = certificates_of(tmp_path)["replay"]
    os.chown(files.key, NOBODY, NOBODY)
    assert f"{files.key} belongs to the user with the number {NOBODY}, but a key must belong to" in refusal(files)


@pytest.mark.parametrize(("mode", "is_accepted"), [(0o440, True), (0o640, True), (0o660, False), (0o444, False)])
def test_a_group_may_read_a_key_of_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, is_accepted: bool
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root has files of root")
    files = certificates_of(tmp_path)["replay"]
    files.key.chmod(mode)
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    if is_accepted:
        read(files, "replay", now=time.time())
    else:
        assert "must be 0640 or less; run chmod 640" in refusal(files)


def test_the_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    root = authority()
    mine, other = Foreign().signed_by(root), Foreign().signed_by(root)
    files = write(tmp_path, [mine], root, key=other)
    assert refusal(files).startswith(f"{files.key} is not the key of {files.certificate}; ")


def test_a_key_with_a_password_is_refused(tmp_path: Path) -> None:
    root = authority()
    pair = Foreign().signed_by(root)
    files = write(tmp_path, [pair], root)
    files.key.write_bytes(
        pair.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"password"))
    )
    assert refusal(files).startswith(f"the key {files.key} has a password, ")


# Time


def test_an_expired_certificate_is_refused_with_its_dates(tmp_path: Path) -> None:
    files = certificates_of(tmp_path)["replay"]
    end = datetime.fromtimestamp(expiry_of(files.certificate.read_bytes()), UTC)
    message = refusal(files, in_days=91.0)
    assert message.startswith(f"{files.certificate} expired at {end:%Y-%m-%d %H:%M:%S} UTC, and now it is ")
    assert message.endswith("; renew it with penstock certificates RUN --renew")


def test_a_certificate_of_the_future_is_refused_with_its_dates(tmp_path: Path) -> None:
    root = authority()
    files = write(tmp_path, [Foreign(begin=1.0).signed_by(root)], root)
    assert refusal(files).startswith(f"{files.certificate} is valid from 2")


def test_an_expired_authority_is_refused(tmp_path: Path) -> None:
    root = authority(end=1.0)
    files = write(tmp_path, [Foreign().signed_by(root)], root)
    read(files, "replay", now=time.time())
    assert refusal(files, in_days=2.0).startswith(f"{files.authority} expired at ")


# Identity and purpose


@pytest.mark.parametrize(
    ("uris", "fault"),
    [
        ((), "it must have one URI penstock://RUN/ROLE, and has none"),
        (("https://example.org/replay",), "it must have one URI penstock://RUN/ROLE, and has none"),
        (("penstock://a/replay", "penstock://b/replay"), "and has penstock://a/replay, penstock://b/replay"),
        (("penstock://a/owner",), "must be penstock://RUN/ROLE with a role of actor, learner, replay"),
    ],
)
def test_a_certificate_without_one_identity_is_refused(tmp_path: Path, uris: Sequence[str], fault: str) -> None:
    root = authority()
    pair = Foreign(uris=uris).signed_by(root)
    files = write(tmp_path, [pair], root)
    message = refusal(files, None)
    assert message.startswith(f"{files.certificate} is not the certificate of a service: ")
    assert fault in message
    with pytest.raises(ValueError, match=r"penstock://RUN/ROLE"):
        identity_of(pair.pem)


def test_a_certificate_without_names_is_refused(tmp_path: Path) -> None:
    root = authority()
    pair = Foreign(uris=(), names=()).signed_by(root)
    assert "it has no alternative names" in refusal(write(tmp_path, [pair], root), None)


def test_other_uris_do_not_matter(tmp_path: Path) -> None:
    root = authority()
    pair = Foreign(uris=("spiffe://example.org/x", f"penstock://{RUN}/replay")).signed_by(root)
    assert read(write(tmp_path, [pair], root), "replay", now=time.time()).identity == Identity(RUN, "replay")


def test_the_certificate_of_another_role_is_refused(tmp_path: Path) -> None:
    files = certificates_of(tmp_path)["actor"]
    assert refusal(files, "learner").startswith(
        f"{files.certificate} is the certificate of the actor of run {RUN}, but a service with the role learner was"
    )


@pytest.mark.parametrize(
    ("role", "purposes", "lacking"),
    [
        ("replay", BOTH[:1], "serverAuth"),
        ("replay", BOTH[1:], "clientAuth"),
        ("learner", (ExtendedKeyUsageOID.CODE_SIGNING,), "clientAuth and serverAuth"),
        ("actor", BOTH[1:], "clientAuth"),
        ("actor", BOTH[:1], ""),
        ("replay", (), ""),
        ("replay", (ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE,), ""),
    ],
)
def test_a_certificate_must_be_usable_for_its_role(
    tmp_path: Path, role: Role, purposes: Sequence[ExtendedKeyUsageOID], lacking: str
) -> None:
    root = authority()
    files = write(tmp_path, [Foreign(uris=(f"penstock://{RUN}/{role}",), purposes=purposes).signed_by(root)], root)  # type: ignore[arg-type]
    if lacking:
        assert f"lacks the extended key usage {lacking}, which" in refusal(files, role)
    else:
        read(files, role, now=time.time())


# The authority


def test_the_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    # The names are equal, so only the signature differs.
    files = write(tmp_path, [Foreign().signed_by(authority())], authority())
    assert refusal(files).startswith(
        f"{files.certificate} is not signed by an authority in {files.authority}; name the file"
    )


@pytest.mark.parametrize("place", [0, 1, 2])
def test_any_authority_of_a_bundle_may_have_signed(tmp_path: Path, place: int) -> None:
    roots = [authority("old", end=100.0), authority("new", end=200.0), authority("newer", end=300.0)]
    files = write(tmp_path, [Foreign().signed_by(roots[place])], *roots)
    found = read(files, "replay", now=time.time())
    assert found.authority_expires == pytest.approx(time.time() + (place + 1) * 100 * DAY_S, abs=60.0)


def test_certificates_may_stand_between(tmp_path: Path) -> None:
    root = authority("root")
    upper = authority("upper", signed_by=root, end=50.0)
    lower = authority("lower", signed_by=upper, end=100.0)
    pair = Foreign().signed_by(lower)
    found = read(write(tmp_path, [pair, upper, lower], root), "replay", now=time.time())
    assert found.authority_expires == pytest.approx(time.time() + 50 * DAY_S, abs=60.0)
    assert "is not signed by" in refusal(write(tmp_path, [pair, upper], root))


def test_an_authority_renewed_with_its_key_counts_until_its_later_end(tmp_path: Path) -> None:
    former = authority("root", end=50.0)
    renewed = authority("root", end=200.0).certifying(former)
    pair = Foreign().signed_by(former)
    for bundle in ([former, renewed], [renewed, former]):
        found = read(write(tmp_path, [pair], *bundle), "replay", now=time.time())
        assert found.authority_expires == renewed.certificate.not_valid_after_utc.timestamp()


def test_certificates_that_sign_each_other_lead_to_no_authority(tmp_path: Path) -> None:
    one, other = authority("one"), authority("other")
    # Each has signed the key of the other, under its name.
    crossed = [one.certifying(other), other.certifying(one)]
    files = write(tmp_path, [Foreign().signed_by(one), *crossed], authority("root"))
    assert "is not signed by" in refusal(files)


# Names


@pytest.mark.parametrize(
    ("names", "host", "is_covered"),
    [
        (("node1.example.org",), "node1.example.org", True),
        (("node1.example.org",), "Node1.Example.org.", True),
        (("node1.example.org",), "node2.example.org", False),
        (("node1.example.org",), "example.org", False),
        (("*.example.org",), "node1.example.org", True),
        (("*.example.org",), "a.node1.example.org", False),
        (("*.example.org",), "example.org", False),
        (("*",), "localhost", False),
        (("localhost",), "localhost", True),
        (("10.0.0.1",), "10.0.0.1", True),
        (("*.0.0.1",), "10.0.0.1", False),
        (("fd00::1",), "fd00:0:0::1", True),
        ((), "localhost", False),
    ],
)
def test_names_cover_hosts_as_in_tls(names: Sequence[str], host: str, is_covered: bool) -> None:
    assert covers(names, host) == is_covered


# Damaged files


@given(st.sampled_from(["certificate", "authority", "key"]), st.integers(0, 10_000), st.binary(min_size=1, max_size=3))
def test_damaged_bytes_give_a_certificate_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, name: str, place: int, by: bytes
) -> None:
    files = certificates_of(tmp_path_factory.getbasetemp() / "damaged")["replay"]
    path: Path = getattr(files, name)
    content = path.read_bytes()
    place %= len(content)
    try:
        path.write_bytes(content[:place] + by + content[place + len(by) :])
        read(files, "replay", now=time.time())
    except ConfigurationError as error:
        assert "\n" not in str(error)
    finally:
        path.write_bytes(content)

"""The certificates of a run in a folder: an authority, and a folder for each role that can be given to its service.

authority.pem          its certificate, which all services trust
authority-key.pem      key with which new certificates are signed; no service needs it
<role>/                certificate.pem, key.pem and authority.pem of the services with this role

`issue` makes missing and due certificates, so that it can be run at every start. Another authority revokes all
certificates of the one before it, so all services of a run need their new folders at once.
"""

import contextlib
import fcntl
import ipaddress
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from penstock.errors import ConfigurationError
from penstock.machine.files import make_folder, write_atomically
from penstock.machine.system_errors import in_words
from penstock.security import signing
from penstock.security.certificate import Files, covers, in_utc, read, stated
from penstock.security.pem_files import certificates, content, private_content
from penstock.security.roles import ROLES, Identity, Role, check_run_name

DAYS = 90
"""Days for which the certificate of a service is valid by default."""

_MOST_DAYS = 3650
_DUE_SHARE = 1 / 3
"""Share of a certificate's life that is left when the next `issue` replaces it."""

_MOST_CHARACTERS = 253
_BUNDLE, _KEY = "authority.pem", "authority-key.pem"
_HOST_NAME = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Issued:
    """The certificate of a role after `issue`.

    Attributes:
        identity: Run and role.
        files: Its files.
        expires: End of its validity, in Unix seconds.
        is_new: Whether it was made now.
    """

    identity: Identity
    files: Files
    expires: float
    is_new: bool


def issue(
    folder: Path,
    run: str,
    *,
    days: int,
    hosts: Mapping[Role, Sequence[str]],
    now: float,
    renew: bool = False,
    new_authority: bool = False,
) -> list[Issued]:
    """Makes the certificates of a run that are missing, damaged, or valid for less than a third of their life.

    Args:
        folder: Folder of the certificates.
        run: Name of the run in them.
        days: Days for which new ones are valid.
        hosts: Further DNS names and IP addresses by role, which are added to the names of its former certificate.
        now: Unix time in seconds.
        renew: Whether all services get new certificates.
        new_authority: Whether to make another authority, which signs all of them.

    Returns:
        The certificate of each role.

    Raises:
        ConfigurationError: An argument can't be used, the folder belongs to another run or can't be written, or the
            authority can't be used.
    """
    check_run_name(run)
    _check_wanted(days, hosts)
    try:
        with _locked(folder):
            authority = _AuthorityFiles(folder, run, now)
            if new_authority or not authority.trusted:
                authority.replace()
            return [
                _of_role(authority, Identity(run, role), hosts.get(role, ()), days=days, renew=renew) for role in ROLES
            ]
    except OSError as error:
        reason = in_words(error, folder, "choose another folder")
        raise ConfigurationError(f"can't write certificates in {folder}: {reason}") from None


def run_of(folder: Path) -> str:
    """Returns the run whose certificates a folder has; empty without any. Raises `ConfigurationError`."""
    bundle = folder / _BUNDLE
    return signing.run_of(certificates(content(bundle), bundle)[0]) if bundle.exists() else ""


def files_of(folder: Path) -> Files:
    """Returns the files in the folder of a role."""
    return Files(folder / "certificate.pem", folder / "key.pem", folder / _BUNDLE)


class _AuthorityFiles:
    """The authority in a folder, which is locked.

    Attributes:
        folder: The folder.
        now: Unix time in seconds.
        trusted: The certificates that services trust: the authority's, and in a folder of an earlier release maybe
            earlier authorities'; empty if there is none yet.
    """

    def __init__(self, folder: Path, run: str, now: float) -> None:
        self.folder, self.now = folder, now
        self._run, self._bundle, self._key = run, folder / _BUNDLE, folder / _KEY
        self.trusted = certificates(content(self._bundle), self._bundle) if self._bundle.exists() else []
        former = signing.run_of(self.trusted[0]) if self.trusted else run
        if former != run:
            raise ConfigurationError(
                f"{folder} has the certificates of {f'run {former}' if former else 'another authority'}, not of run"
                f" {run}; choose another folder, or the same name"
            )

    @property
    def pem(self) -> bytes:
        """The trusted certificates."""
        return b"".join(each.public_bytes(Encoding.PEM) for each in self.trusted)

    def replace(self) -> None:
        """Makes an authority in place of the one before. Raises `OSError`."""
        made = signing.Authority.new(self._run, now=self.now)
        self.trusted = [made.certificate]
        # The certificate comes second: services never get one whose key is lost.
        write_atomically(self._key, signing.key_pem(made.key))
        write_atomically(self._bundle, self.pem)

    def signer(self) -> signing.Authority:
        """Returns the authority that signs. Raises `ConfigurationError` if it can't be used."""
        remedy = "make a new authority with --new-authority, and start all services again"
        if not self._key.exists():
            raise ConfigurationError(f"the key of the authority, {self._key}, is missing; restore it, or {remedy}")
        try:
            key = load_pem_private_key(private_content(self._key), password=None)
        except (ValueError, TypeError):
            raise ConfigurationError(f"{self._key} holds no usable key; restore it, or {remedy}") from None
        found = [each for each in self.trusted if each.public_key() == key.public_key()]
        if not found or not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ConfigurationError(
                f"{self._key} is not the key of an authority in {self._bundle}; restore it, or {remedy}"
            )
        end = found[0].not_valid_after_utc.timestamp()
        if end <= self.now:
            raise ConfigurationError(f"{self._bundle} expired at {in_utc(end)}; {remedy}")
        return signing.Authority(found[0], key)


def _of_role(authority: _AuthorityFiles, identity: Identity, hosts: Sequence[str], *, days: int, renew: bool) -> Issued:
    """Makes the files of a role as far as they are missing or due."""
    folder, now = authority.folder / identity.role, authority.now
    files = files_of(folder)
    make_folder(folder)
    if not files.authority.exists() or files.authority.read_bytes() != authority.pem:
        write_atomically(files.authority, authority.pem)
    former = _former_names(files, identity)
    is_new = renew or not all(covers(former, host) for host in hosts) or not _is_sound(files, identity, now)
    if is_new:
        names = dict.fromkeys(name for name in (*former, *hosts) if name != identity.server_name)
        pem, key_pem = authority.signer().sign(identity, [*names], days=days, now=now)
        # Readers keep the former pair until key and certificate match.
        write_atomically(files.key, key_pem)
        write_atomically(files.certificate, pem)
    leaf = certificates(content(files.certificate), files.certificate)[0]
    return Issued(identity, files, leaf.not_valid_after_utc.timestamp(), is_new)


def _former_names(files: Files, identity: Identity) -> Sequence[str]:
    """Returns the names in the present certificate of a role, even if it has expired; none without a certificate."""
    try:
        found, names = stated(certificates(content(files.certificate), files.certificate)[0], files.certificate)
    except ConfigurationError:
        return ()
    return names if found == identity else ()


def _is_sound(files: Files, identity: Identity, now: float) -> bool:
    """Returns whether a service can use its files, and for long enough."""
    try:
        found = read(files, identity.role, now=now)
    except ConfigurationError:
        return False
    leaf = certificates(found.certificate_pem, files.certificate)[0]
    return found.identity == identity and not _is_due(leaf, now)


def _is_due(certificate: x509.Certificate, now: float) -> bool:
    begin, end = certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
    return end - now < (end - begin) * _DUE_SHARE


def _check_wanted(days: int, hosts: Mapping[Role, Sequence[str]]) -> None:
    if not 1 <= days <= _MOST_DAYS:
        raise ConfigurationError(f"certificates can't be valid for {days} days; choose 1 to {_MOST_DAYS:,} days")
    for host in (host for each in hosts.values() for host in each):
        try:
            ipaddress.ip_address(host)
        except ValueError:
            if len(host) > _MOST_CHARACTERS or not _HOST_NAME.fullmatch(host):
                raise ConfigurationError(
                    f"{host!r} is not a host; name a DNS name such as node1.example.org, or an IP address, without a"
                    " port"
                ) from None


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Makes the folder, and waits while another process changes it. Raises `OSError`."""
    make_folder(folder)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Some network file systems can't lock a folder. A run has one command at a time there.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

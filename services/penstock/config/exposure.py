"""Refuses servers that other hosts can reach, unless the user allows it: nothing is authenticated or encrypted."""

from penstock.addresses import Address, is_loopback
from penstock.errors import ConfigurationError


def check_listen(setting: str, listen: str, *, insecure: bool) -> None:
    """Raises `ConfigurationError` if the gRPC server that `setting` places can be reached from other hosts."""
    if not insecure and not Address.parse(listen).is_local:
        raise ConfigurationError(_refusal(setting, listen))


def check_host(setting: str, host: str, *, insecure: bool) -> None:
    """Raises `ConfigurationError` if an HTTP server on this host, as `setting` has it, can be reached from others."""
    if not insecure and not is_loopback(host):
        raise ConfigurationError(_refusal(setting, host))


def _refusal(setting: str, place: str) -> str:
    return (
        f"{setting} {place} can be reached from other hosts, and whatever reaches it can read, change and end the run,"
        " because nothing is authenticated or encrypted; use 127.0.0.1 or unix:PATH, or set security.insecure=true in a"
        " private network"
    )

"""Refuses servers that other hosts can reach, unless the user allows it: nothing is authenticated or encrypted."""

from penstock.addresses import ADDRESS_FILE, Address, is_loopback
from penstock.config.sections import Sections
from penstock.errors import ConfigurationError


def check_listen(setting: str, listen: str, *, insecure: bool) -> None:
    """Raises `ConfigurationError` if the gRPC server that `setting` places can be reached from other hosts."""
    if not insecure and not Address.parse(listen).is_local:
        raise ConfigurationError(_refusal(setting, listen))


def check_host(setting: str, host: str, *, insecure: bool) -> None:
    """Raises `ConfigurationError` if an HTTP server on this host, as `setting` has it, can be reached from others."""
    if not insecure and not is_loopback(host):
        raise ConfigurationError(_refusal(setting, host))


def isolation(config: Sections, service: str) -> str | None:
    """Returns why others can't reach a service where this configuration says that it is; None if nothing is known.

    `service` is "replay" or "learner". Each service has the settings of the others, which usually are the same.
    """
    if service == "replay":
        listen, named = config.replay.listen, {"learner.replay_addresses": config.learner.replay_addresses}
    else:
        listen = config.learner.listen
        named = {
            "actor.learner_address": config.actor.learner_address,
            "evaluation.learner_address": config.evaluation.learner_address,
        }
    if not Address.parse(listen).is_local:
        return None
    for setting, addresses in named.items():
        dialled = [address for address in addresses if not address.startswith(ADDRESS_FILE)]
        if dialled and not any(Address.parse(address).is_local for address in dialled):
            return (
                f"{service}.listen {listen} can be reached from its own host only, but {setting} has {dialled[0]};"
                " listen on 0.0.0.0, which needs security.insecure=true, unless a tunnel leads here"
            )
    return None


def _refusal(setting: str, place: str) -> str:
    return (
        f"{setting} {place} can be reached from other hosts, and whatever reaches it can read, change and end the run,"
        " because nothing is authenticated or encrypted; use 127.0.0.1 or unix:PATH, or set security.insecure=true in a"
        " private network"
    )

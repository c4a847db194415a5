"""Refuses servers that other hosts can reach, unless they have a certificate or the user allows it."""

from penstock.config.sections import Sections
from penstock.config.settings.security import SecurityConfig
from penstock.errors import ConfigurationError
from penstock.machine.addresses import ADDRESS_FILE, LOOPBACK, Address, is_loopback


def check_listen(setting: str, listen: str, security: SecurityConfig) -> None:
    """Raises `ConfigurationError` if the gRPC server that `setting` places can be reached from other hosts.

    A service with a certificate may be: it refuses every client without one, and reports its health alone to others.
    """
    if not security.admits_others and not Address.parse(listen).is_local:
        raise ConfigurationError(_refusal(setting, listen))


def metrics_host(chosen: str | None, listen: Address, security: SecurityConfig) -> str:
    """Returns the host on which a service serves its metrics, which are never encrypted.

    Args:
        chosen: Setting `telemetry.metrics_host`.
        listen: Address of the service's gRPC server.
        security: Protection of the service.

    Raises `ConfigurationError` if other hosts can reach it although nothing allows that.
    """
    # Without certificates, a service that others reach is watched by others too.
    host = chosen or (LOOPBACK if security.certificate else listen.host or LOOPBACK)
    if not security.admits_others and not is_loopback(host):
        raise ConfigurationError(_refusal("telemetry.metrics_host", host))
    return host


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
                " listen on 0.0.0.0, which needs security.certificate or security.insecure=true, unless a tunnel leads"
                " here"
            )
    return None


def _refusal(setting: str, place: str) -> str:
    return (
        f"{setting} {place} can be reached from other hosts, and whatever reaches it can read, change and end the run,"
        " because nothing is authenticated or encrypted; use 127.0.0.1 or unix:PATH, set security.certificate (penstock"
        " certificates RUN makes certificates), or set security.insecure=true in a private network"
    )

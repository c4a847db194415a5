"""A link of limited rate between two network namespaces, for benchmarks of two hosts on one machine."""

import contextlib
import subprocess
from collections.abc import Iterator

from benchmarks.peers.place import Place

CLIENT = "penstock-bench-client"
"""Network namespace of the client."""

_SERVER, _DEVICES = "penstock-bench-server", ("pbserver", "pbclient")
_HOSTS = ("10.213.0.1", "10.213.0.2")


@contextlib.contextmanager
def limited_link(mbit_per_s: float) -> Iterator[Place]:
    """Yields the place of a server at the other end of a link with this rate in each direction (tc's token bucket).

    Raises:
        SystemExit: The namespaces can't be created, which needs root, and `ip` and `tc` of iproute2.
    """
    try:
        for command in _commands(mbit_per_s):
            subprocess.run(command.split(), check=True, capture_output=True, text=True)
        yield Place(_HOSTS[0], _SERVER, _DEVICES[1])
    except (OSError, subprocess.CalledProcessError) as error:
        reason = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else str(error)
        raise SystemExit(f"can't create a link between two network namespaces: {reason}; run as root") from None
    finally:
        for namespace in (_SERVER, CLIENT):
            subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)


def _commands(mbit_per_s: float) -> Iterator[str]:
    yield f"ip netns add {_SERVER}"
    yield f"ip netns add {CLIENT}"
    yield f"ip link add {_DEVICES[0]} netns {_SERVER} type veth peer name {_DEVICES[1]} netns {CLIENT}"
    for namespace, device, host in zip((_SERVER, CLIENT), _DEVICES, _HOSTS, strict=True):
        yield f"ip -n {namespace} addr add {host}/24 dev {device}"
        yield f"ip -n {namespace} link set {device} up"
        yield f"ip -n {namespace} link set lo up"
        yield f"tc -n {namespace} qdisc add dev {device} root tbf rate {mbit_per_s:g}mbit burst 256kb latency 50ms"

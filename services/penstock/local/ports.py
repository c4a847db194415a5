"""Why a server can't listen on a port of this host."""

import errno
import os
import socket


def refusal(host: str, port: int) -> str | None:
    """Returns the reason why a server can't listen on this address now; None if it can. IPv6 has no brackets."""
    try:
        # Its error is lost in `create_server`.
        socket.getaddrinfo(host, port)
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            return None
    except socket.gaierror:
        return "unknown host"
    except OSError as error:
        return "in use" if error.errno == errno.EADDRINUSE else os.strerror(error.errno or 0).lower()

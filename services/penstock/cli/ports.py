"""Whether a port can be listened on. Asked by `cli.doctor` and `cli.containers`."""

import errno
import os
import socket


def refusal(host: str, port: int) -> str | None:
    """Why nobody could listen there now; None: one could."""
    host = host.strip("[]")
    try:
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            return None
    except socket.gaierror:
        return "unknown host"
    except OSError as error:
        return "in use" if error.errno == errno.EADDRINUSE else os.strerror(error.errno or 0).lower()

"""What another user of this host can do: a process that has become nobody tries it. It needs root."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

NOBODY = 65_534
_BECOME = f"""
import json, os, socket, sys

given = json.load(sys.stdin)
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
"""
_OPEN = """
paths, addresses = given

def succeeds(action):
    try:
        action()
    except OSError:
        return False
    return True

def connect(address):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(address)

print(json.dumps([
    *(
        path
        for path in paths
        if succeeds(lambda: os.listdir(path))
        or succeeds(lambda: open(path, "rb").close())
        or succeeds(lambda: open(path, "ab").close())
    ),
    *(address for address in addresses if succeeds(lambda: connect(address))),
]))
"""
_SEND = """
address, message = given
with socket.socket(socket.AF_UNIX) as client:
    client.connect(address)
    try:
        client.sendall(bytes.fromhex(message))
        received = client.recv(2**16)
    except ConnectionError:
        received = b""
print(json.dumps(received.hex()))
"""


def open_to_others(paths: Iterable[Path], sockets: Iterable[Path] = ()) -> list[str]:
    """Returns those of these files, folders and sockets that another user can read, change or connect to.

    The test is skipped without root.
    """
    found: list[str] = _as_nobody(_OPEN, [[str(path) for path in paths], [str(path) for path in sockets]])
    return found


def answer_to_others(address: str, message: bytes) -> bytes:
    """Returns the first bytes that a Unix socket answers to a message of another user; empty if it hangs up.

    An abstract address begins with a null byte. The test is skipped without root.
    """
    return bytes.fromhex(_as_nobody(_SEND, [address, message.hex()]))


def _as_nobody(script: str, given: object) -> Any:
    """Runs a script as another user, with `given`, and returns the value that it prints."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    result = subprocess.run(
        [sys.executable, "-ISc", _BECOME + script], input=json.dumps(given), capture_output=True, text=True, check=True
    )
    return json.loads(result.stdout)

import os
import subprocess
import sys

import pytest

from penstock.process.failed_handshakes import reason_of

OF_GRPC = (
    "I1126 18:31:50.123456  4242 handshaker.cc:155] CallNextHandshakerLocked: error=UNKNOWN: Tls handshake failed"
    " (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: "
)
LINES = {
    "error:1000007d:SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: certificate has expired": "expired",
    "error:1000007d:SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: certificate is not yet valid": (
        "not_yet_valid"
    ),
    "error:1000007d:SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate": (
        "other_authority"
    ),
    "error:100000c0:SSL routines:OPENSSL_internal:PEER_DID_NOT_RETURN_A_CERTIFICATE: Invalid context": "no_certificate",
    "error:100000f7:SSL routines:OPENSSL_internal:WRONG_VERSION_NUMBER: Invalid context": "plain_text",
    "error:1000009c:SSL routines:OPENSSL_internal:HTTP_REQUEST: Invalid context": "plain_text",
    "error:100000f0:SSL routines:OPENSSL_internal:UNEXPECTED_MESSAGE: Invalid context": "malformed",
}
PROCESS = """
import os, sys
from penstock.process import failed_handshakes
from penstock.telemetry import logs, metrics
failed_handshakes.watch()
logs.configure({}, level="info", log_format="json")
for line in sys.argv[1:]:
    os.write(2, line.encode() + b"\\n")
sys.stderr.write("of Python\\n")
os.write(2, b"of a library\\n")
# The reader works in order.
while metrics.FAILED_HANDSHAKES.labels("expired")._value.get() < 3.0:
    pass
print(metrics.FAILED_HANDSHAKES.labels("expired")._value.get())
"""


@pytest.mark.parametrize("line", LINES)
def test_every_reason_of_a_failed_handshake_has_a_label(line: str) -> None:
    label, text = reason_of(OF_GRPC + line)
    assert label == LINES[line]
    assert ";" in text, "what is wrong; what to do"


def test_failed_handshakes_are_counted_and_logged_once_and_all_other_output_is_kept() -> None:
    expired = OF_GRPC + next(iter(LINES))
    # Those of connections that the process makes itself are reported by its clients.
    other = f"{expired} args={{grpc.client_channel_factory=0x7fbf013954c0}} nobody needs"
    error = "E1126 18:31:50.123456  4242 some_file.cc:12] something that is wrong"
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, expired, other, error, expired, expired],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert done.stdout == "3.0\n"
    lines = done.stderr.splitlines()
    assert error in lines and "of Python" in lines
    assert not any("nobody needs" in line or "Handshake failed" in line for line in lines)
    assert sum("the client's certificate has expired" in line for line in lines) == 1

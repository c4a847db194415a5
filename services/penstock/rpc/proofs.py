"""Proofs of the run's key in the calls that only the holder of that key may make, as the contract's RunProof defines.

Clients add them with `prove`, and servers check them with `prover_of`. Who may make a call is decided by the part that
it changes: `ReplayBuffer.check_holder` for a store, and `require_operator` for a run.
"""

from google.protobuf.message import Message

from penstock.errors import PermissionDenied
from penstock.rpc.service import Method
from penstock.v1 import snapshot_pb2


def prove(method: Method, challenge: bytes, request: Message, key: bytes) -> None:
    """Adds the proof of a run's key to a request, in answer to this challenge; empty in a unary call."""
    # Loaded where it is needed: its library takes 9 MB, and actors do without.
    from penstock.security.run_key import public_key, sign

    proof: snapshot_pb2.RunProof = request.proof  # type: ignore[attr-defined]
    proof.key, proof.signature = public_key(key), sign(key, _signed(method, challenge, request))


def prover_of(method: Method, challenge: bytes, request: Message) -> bytes:
    """Returns the public half of the key that a request proves; empty without a proof.

    Raises `PermissionDenied` if the proof is not one of this call.
    """
    if not request.HasField("proof"):
        return b""
    from penstock.security.run_key import is_signed

    proof: snapshot_pb2.RunProof = request.proof  # type: ignore[attr-defined]
    if not is_signed(proof.key, proof.signature, _signed(method, challenge, request)):
        raise PermissionDenied(
            f"the proof of the run's key in {method.name} is not a signature of this call; it must be made for each"
            " call, as the message RunProof of the contract defines"
        )
    return proof.key


def require_operator(prover: bytes, method: Method, challenge: bytes, request: Message, option: str = "") -> None:
    """Raises `PermissionDenied` unless a request proves the key of this public half; empty: it has a certificate.

    `option` names the option of the command that takes the run's folder.
    """
    proved = prover_of(method, challenge, request)
    if prover and proved != prover:
        raise PermissionDenied(
            f"{method.name} needs a certificate, or a proof of the run's key; name the run's folder, which has the key,"
            f"{option and f' with {option}'} on a machine that sees it"
        )


def public_half(key: bytes) -> bytes:
    """Returns the public half of a run's key, which its proofs show."""
    from penstock.security.run_key import public_key

    return public_key(key)


def _signed(method: Method, challenge: bytes, request: Message) -> bytes:
    content = type(request)()
    content.CopyFrom(request)
    content.ClearField("proof")
    if "contract" in content.DESCRIPTOR.fields_by_name:
        content.ClearField("contract")
    return method.path.encode() + b"\0" + challenge + content.SerializeToString(deterministic=True)

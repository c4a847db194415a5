"""The run's key: an Ed25519 key whose private half the learner keeps in the run's folder.

Replay services keep the public half, so that neither their files nor the messages to them let others act as the
learner.
"""

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


def public_key(key: bytes) -> bytes:
    """Returns the public half (32 bytes) of a key (32 bytes)."""
    return Ed25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw()


def sign(key: bytes, content: bytes) -> bytes:
    """Returns the signature (64 bytes) of some content by a key (32 bytes). Takes about 0.1 ms."""
    return Ed25519PrivateKey.from_private_bytes(key).sign(content)


def is_signed(public: bytes, signature: bytes, content: bytes) -> bool:
    """Returns whether a signature of some content was made with the key of this public half. Takes about 0.4 ms."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, content)
    except (InvalidSignature, ValueError):
        # `ValueError`: the public half has another length.
        return False
    return True

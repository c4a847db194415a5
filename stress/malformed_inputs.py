"""Malformed beginnings of TLS handshakes and frames of HTTP/2, which a seed determines. Used by `fuzz.py`."""

import random
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""First bytes of a client of HTTP/2."""

FRAMES = {"DATA": 0, "HEADERS": 1, "PRIORITY": 2, "RST_STREAM": 3, "SETTINGS": 4, "PUSH_PROMISE": 5, "PING": 6}
FRAMES |= {"GOAWAY": 7, "WINDOW_UPDATE": 8, "CONTINUATION": 9}
# Indexed fields of HPACK's static table: POST, http, and a literal :path of an RPC.
_PATH = b"/penstock.v1.ReplayService/GetReplayStatus"
_HEADERS = b"\x83\x86\x04" + bytes([len(_PATH)]) + _PATH + b"\x5f\x10application/grpc"
_HEADERS += b"\x00\x02te\x08trailers\x01\x01a"


def frame(kind: int, flags: int, stream: int, payload: bytes, length: int | None = None) -> bytes:
    """Returns a frame of HTTP/2; `length` replaces the true one."""
    size = len(payload) if length is None else length
    return struct.pack(">I", size)[1:] + struct.pack(">BBI", kind, flags, stream) + payload


class Inputs:
    """Endless malformed inputs, which a seed determines."""

    def __init__(self, seed: int, hello: bytes) -> None:
        """Prepares mutations of a recorded first message of a TLS client, `hello`."""
        self._random, self._hello = random.Random(seed), hello

    def of_tls(self) -> bytes:
        """Returns a malformed beginning of a handshake."""
        choose = self._random
        kind = choose.randrange(6)
        if kind == 0:
            return choose.randbytes(choose.randrange(1, 2_000))
        if kind == 1:
            return self._hello[: choose.randrange(1, len(self._hello))]
        if kind == 2:
            # A record whose length or type is wrong.
            return (
                struct.pack(">BHH", choose.randrange(256), choose.randrange(2**16), choose.randrange(2**16))
                + (self._hello[5:])
            )
        if kind == 3:
            return self._hello + self.mutated(self._hello)
        if kind == 4:
            return PREFACE + self.of_http2()
        return self.mutated(self._hello)

    def of_http2(self) -> bytes:
        """Returns some frames, most of which are malformed or out of order."""
        return b"".join(self._frame() for _ in range(self._random.randrange(1, 6)))

    def mutated(self, data: bytes) -> bytes:
        """Returns data with some bytes changed, inserted or removed."""
        choose, changed = self._random, bytearray(data)
        for _ in range(choose.randrange(1, 8)):
            at = choose.randrange(len(changed))
            match choose.randrange(3):
                case 0:
                    changed[at] ^= 1 << choose.randrange(8)
                case 1:
                    changed[at:at] = choose.randbytes(choose.randrange(1, 16))
                case _ if len(changed) > 16:
                    del changed[at : at + choose.randrange(1, 16)]
        return bytes(changed)

    def _frame(self) -> bytes:
        choose = self._random
        stream = choose.choice((0, 1, 1, 1, 2, 3, 5, 2**31 - 1))
        kind = choose.randrange(8)
        if kind == 0:
            size = choose.randrange(64)
            return frame(choose.randrange(256), choose.randrange(256), stream, choose.randbytes(size))
        if kind == 1:
            return frame(FRAMES["HEADERS"], 4, stream, _HEADERS)
        if kind == 2:
            return frame(FRAMES["HEADERS"], choose.choice((0, 1, 4, 5, 0x2D)), stream, self.mutated(_HEADERS))
        if kind == 3:
            # A message of gRPC whose length is a lie.
            message = struct.pack(">BI", choose.randrange(3), choose.choice((0, 5, 2**31, 2**32 - 1)))
            return frame(FRAMES["DATA"], choose.randrange(2), stream, message + choose.randbytes(5))
        if kind == 4:
            payload = struct.pack(">HI", choose.randrange(8), choose.choice((0, 1, 2**31, 2**32 - 1)))
            return frame(FRAMES["SETTINGS"], 0, choose.choice((0, 0, stream)), payload)
        if kind == 5:
            return frame(FRAMES["WINDOW_UPDATE"], 0, stream, struct.pack(">I", choose.choice((0, 1, 2**31 - 1))))
        if kind == 6:
            known = choose.choice(("PRIORITY", "RST_STREAM", "PUSH_PROMISE", "PING", "GOAWAY", "CONTINUATION"))
            return frame(FRAMES[known], choose.randrange(256), stream, choose.randbytes(choose.choice((4, 5, 8, 13))))
        return frame(choose.choice(tuple(FRAMES.values())), 0, stream, b"x" * 8, length=choose.randrange(2**24))

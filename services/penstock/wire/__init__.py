"""Between Penstock's types and the contract's messages. No I/O: bytes in, bytes out."""

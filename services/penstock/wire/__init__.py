"""Conversion between Penstock's types and the contract's messages. No I/O."""

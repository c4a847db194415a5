"""Sampling and allotment across replay services that act as one buffer. Without I/O; `rpc.sharded_source` does that."""

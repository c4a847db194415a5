"""How several replay services behave as one buffer. Pure of I/O: `rpc.sharded_source` has the streams."""

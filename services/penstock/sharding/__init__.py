"""Logic by which several replay services act as one buffer. `rpc.clients.sharded_source` does the I/O."""

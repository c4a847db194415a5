"""A store: one memory-mapped file of segments and headers, with the records and files beside it."""

"""The replay buffer: sum tree, mapped store, gate, and the buffer that composes them. NumPy and numba only."""

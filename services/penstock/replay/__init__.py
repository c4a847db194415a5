"""The replay buffer: sum tree, mapped store, gate, and `ReplayBuffer`, which combines them. NumPy and numba only."""

from penstock.machine import compiled_code

compiled_code.make_writable()

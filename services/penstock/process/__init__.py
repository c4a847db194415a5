"""The process of a service: signals, memory, its disk, and hung calls."""

"""A run on this machine: its services as child processes, started, watched, restarted and ended together."""

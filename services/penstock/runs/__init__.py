"""The folder of a run: its files, checkpoints, metrics, summary, copies and store, and the message about its end."""

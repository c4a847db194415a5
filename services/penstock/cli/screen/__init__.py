"""The output of commands: the display of an active run, its lines and figures, and hints."""

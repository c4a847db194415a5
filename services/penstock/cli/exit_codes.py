"""How commands end."""

NOT_SERVING = 1
"""`penstock health` asked a service that is not ready."""

UNFIT = 1
"""`penstock doctor` found something that is in the way."""

CRASHED = 1
"""An exception that nothing expected; a traceback says which."""

USAGE_ERROR = 2
"""The user must change a setting, a file or the environment before anything can run; one line says what."""

GAVE_UP = 3
"""Something ended that no restart would cure; one line says why."""

INTERRUPTED = 130
"""Ctrl-C, as shells have it."""

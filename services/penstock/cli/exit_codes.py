"""How commands end."""

NOT_SERVING = 1
"""`penstock health` asked a service that is not ready."""

UNFIT = 1
"""`penstock doctor` found something that is in the way."""

USAGE_ERROR = 2
"""The user must change something; what, is said in one line."""

INTERRUPTED = 130
"""Ctrl-C, as shells have it."""

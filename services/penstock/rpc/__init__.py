"""gRPC servers, servicers and clients, and the mapping between errors and status codes."""

import os

# gRPC reads this once, at its first import, which always happens through this package. Its event engine adds a thread
# to the path of each message to asyncio: an empty call costs both sides together 165 microseconds with it and 113
# without. Newer gRPC versions warn about unknown names and continue. A value set by the user wins.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")

# gRPC ends the process, without a word, for a name that it does not know, and for names of older versions.
os.environ.pop("GRPC_POLL_STRATEGY", None)

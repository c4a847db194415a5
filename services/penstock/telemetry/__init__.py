"""Metrics and logs of the services.

prometheus-client chooses at its import where metrics are kept. A process that inherits the folder of another server's
metrics would write there, and fail without the folder.
"""

import os

_FOLDERS = ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir")

_inherited = {name: os.environ.pop(name) for name in _FOLDERS if name in os.environ}
try:
    import prometheus_client as prometheus_client
finally:
    # The user's own processes may need them.
    os.environ.update(_inherited)

"""Metrics and logs of the services.

prometheus-client chooses at its import where metrics are kept. A process that inherits the folder of another server's
metrics would write there, and fail without the folder.
"""

from penstock.machine.library_variables import hidden

with hidden("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"):
    import prometheus_client as prometheus_client

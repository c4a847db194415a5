"""The metric that names the run of a learner, so that dashboards can select a run and compare several."""

import os

from penstock.telemetry import metrics

PRESET = "PENSTOCK_PRESET"
"""Variable that names the preset if --preset does not; docker-compose.yml reads it as well."""

COMMIT = "PENSTOCK_COMMIT"
"""Variable with the commit of the running code, which is set when an image is built."""


def show_run(name: str, environment: str) -> None:
    """Sets the metric for a run with this name and environment. Preset and commit are empty if not in a variable."""
    metrics.RUN_INFO.labels(name, environment, os.environ.get(PRESET, ""), os.environ.get(COMMIT, "")).set(1)

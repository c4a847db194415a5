"""Metrics and logs of the services."""

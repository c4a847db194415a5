"""Runs on the engines of clusters. Only the commands use it: services and actors know nothing of an engine."""

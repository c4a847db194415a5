"""Environments, collection of segments, and evaluation."""

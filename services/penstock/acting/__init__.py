"""Environments, their collection into segments, and evaluation."""

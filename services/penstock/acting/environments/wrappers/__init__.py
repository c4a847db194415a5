"""Wrappers around environments: those that users name, and those of Penstock."""

"""Snapshots of a store: taken from a store in use, kept in a folder, and restored to a new store."""

"""Environments in processes of their own: workers of an actor, and environments in another Python."""

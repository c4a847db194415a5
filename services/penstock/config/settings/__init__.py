"""The settings, one section each."""

"""Presets: TOML files that a user can read and copy."""

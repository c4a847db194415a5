"""Environments: their names, making, checks, and steps in one sequence of rows."""

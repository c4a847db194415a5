"""Policies that act: their inputs, random numbers, and inference."""

"""Environments with other interfaces than Gymnasium's, as environments of Gymnasium, under names such as gym:Id."""

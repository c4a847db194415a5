"""Spaces and values of environments: leaves, masks, bounds, and faults in them."""

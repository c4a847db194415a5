"""Wrappers of environments: `named` applies the wrappers that a user names, and the other modules define Penstock's."""

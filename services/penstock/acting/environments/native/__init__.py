"""Vectorised forms of environments that Gymnasium does not have, and the choice of a form."""

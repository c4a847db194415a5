"""The services of a run: the roster of actors, their states and number, and the places of replay services."""

"""The services: wiring only."""

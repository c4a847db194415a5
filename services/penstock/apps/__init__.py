"""Entry points of the services, which build their parts and connect them."""

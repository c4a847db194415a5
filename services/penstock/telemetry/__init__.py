"""What people and machines can see of a service: its metrics and its logs."""

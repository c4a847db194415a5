"""gRPC clients of the services, for the processes whose main thread computes."""

"""Everything that speaks gRPC: servers, servicers, clients, and the table between errors and status codes."""

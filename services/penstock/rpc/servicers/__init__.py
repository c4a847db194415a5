"""gRPC servicers, which decode requests, call the part that decides, and encode responses."""

"""One module per gRPC service."""

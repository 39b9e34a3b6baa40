"""The server: gRPC and REST over one service. Nothing is imported here, so that settings load without either."""

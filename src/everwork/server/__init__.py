"""The server: gRPC and REST over one service. This module imports nothing, so that settings load without either."""

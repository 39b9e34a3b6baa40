"""The gRPC APIs: the jobs API, the Zeebe gateway, and the stream for fast workers."""

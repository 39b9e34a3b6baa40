"""The gRPC doors: the jobs API, the Zeebe gateway, and the stream for fast workers."""

"""The REST API, on real servers and real connections."""

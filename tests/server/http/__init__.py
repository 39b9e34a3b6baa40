"""The REST door, on real servers and real connections."""

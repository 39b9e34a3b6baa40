"""Generates the reference of the documentation site from the code: settings, metrics, REST, gRPC, commands, Python."""

"""The HTTP server: REST API and dashboard."""

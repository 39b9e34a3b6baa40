"""The dashboard: pages rendered by the server and updated live."""

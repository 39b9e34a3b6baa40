"""The dashboard: pages rendered by the server, kept up to date while they are looked at."""

"""The small web framework of the REST API and the dashboard: operations as data."""

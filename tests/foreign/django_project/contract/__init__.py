"""The contract of Django's task backends, as a Django application: run by `python -m contract` in any environment."""

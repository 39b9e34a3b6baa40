"""A shop on FastAPI and SQLAlchemy, with its jobs in the same database."""

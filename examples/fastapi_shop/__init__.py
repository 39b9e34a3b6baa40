"""A small shop on FastAPI and SQLAlchemy."""

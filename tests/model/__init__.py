"""Engines driven beside a small dictionary model."""

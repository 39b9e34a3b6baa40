"""Measurements of Everwork: `make bench`."""

"""Stores of jobs behind one contract."""

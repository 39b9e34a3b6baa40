"""Hostile callers of a real server process: its memory stays within its limits, and others are served."""

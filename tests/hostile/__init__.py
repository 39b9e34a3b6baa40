"""Hostile callers against a real server process: its memory stays under its ceilings, and others are served."""

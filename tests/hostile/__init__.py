"""Hostile callers against a real server process: its memory stays under the documented ceilings, and others are served."""

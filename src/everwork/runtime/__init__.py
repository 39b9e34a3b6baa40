"""Runs handlers: fetches jobs from a source, calls, watches, settles."""

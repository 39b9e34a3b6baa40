"""Runs handlers: fetches jobs from a source, calls their handlers, watches timeouts, settles outcomes."""

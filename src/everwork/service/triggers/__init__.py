"""Triggers: jobs created on a schedule."""

"""Crash and torture tests: real processes, killed at random moments, and a checker over what they saw."""

"""Everwork beside its peers, in one harness: `python -m benchmarks peers`."""

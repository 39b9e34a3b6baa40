"""Compares Everwork with other job queues, in one harness: `python -m benchmarks peers`."""

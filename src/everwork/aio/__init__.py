"""Asynchronous building blocks that know nothing of jobs: loops, retries, batches, runners."""

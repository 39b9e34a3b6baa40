"""Asynchronous tools that know nothing of jobs: loops, retries, batches, runners."""

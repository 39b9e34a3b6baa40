"""Asynchronous building blocks that know nothing about jobs: loops, retries, batches, runners."""

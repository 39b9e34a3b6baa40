"""Everwork: a durable job engine. This module is the public door and holds nothing else."""

"""Adapters for the harness, one per file; this folder is its $BENCH_ADAPTERS."""

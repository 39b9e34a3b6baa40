"""What the harness runs: one adapter a file; this folder goes into its $BENCH_ADAPTERS."""

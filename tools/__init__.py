"""Programs for contributors to Everwork."""

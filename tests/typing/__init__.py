"""What type checkers and editors make of the public API."""

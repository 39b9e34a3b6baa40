"""Programs of other people against our server: each is a process of its own that knows nothing of our Python code."""

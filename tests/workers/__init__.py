"""Worker classes, and the processes that run them."""

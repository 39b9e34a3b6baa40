"""The clients, in process and against real server processes."""

"""The command line, as people run it: a process of its own on a real file."""

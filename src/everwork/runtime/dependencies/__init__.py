"""Dependencies of handlers: declared with `Depends`, opened for an attempt or a process, and closed at the end."""

"""How values are written and read: JSON and messages."""

"""Jobs by the clock."""

"""What the first users asked for, end to end: one file per wish."""

"""How work flows: metrics samples, and their history by minute."""

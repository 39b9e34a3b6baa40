"""How work flows: samples, minutes, the doctor."""

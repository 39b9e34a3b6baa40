"""Races between processes on one store: who wins, who is told, and that nobody meets an error."""

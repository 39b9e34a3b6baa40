"""Offline mode: the store goes away for a while, producers and workers go on, and all of them are killed."""

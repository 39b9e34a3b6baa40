"""The Python door as its users meet it: real stores, real workers, real processes."""

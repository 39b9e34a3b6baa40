"""The file of offline mode under attack: damaged, full, shared, killed, copied; and what its courier does then."""

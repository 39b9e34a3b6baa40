"""The fleet: servers on one store, clients of every kind, managers; all processes are killed, and so is the store."""

"""The whole fleet: servers on one store, clients of every kind, managers; all of them are killed, and the store too."""

"""The rules of Everwork: pure, standard library only; no I/O, no clock, no randomness."""

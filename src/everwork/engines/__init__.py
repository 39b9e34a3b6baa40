"""Job stores behind one contract."""

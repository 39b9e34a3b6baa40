"""Throughput: metrics samples and their history by minute."""

"""What a process observes: throughput per minute, whether the store accepts writes, and jumps of its clock."""

"""What a process observes: throughput by minute, whether the store accepts writes, and jumps of its clock."""

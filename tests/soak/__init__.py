"""The soak: hours of moderate load with faults on a real deployment, and a judge that looks for leaks."""

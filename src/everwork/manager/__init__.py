"""What users write as classes: workers, and the processes that run them."""

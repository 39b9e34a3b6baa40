"""What users write and run: job functions, the application, the runtime around them."""

"""What users write as functions: the application, its job functions, their schedules."""

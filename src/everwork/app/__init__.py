"""The application: job functions, their schedules, enqueuing and workers."""

"""Applications as their users see them: real stores, real workers, real processes."""

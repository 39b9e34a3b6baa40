"""Who works on a store: workers, triggers, processes."""

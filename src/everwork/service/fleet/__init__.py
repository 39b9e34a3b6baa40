"""The workers, triggers and processes of a store."""

"""The use cases between the doors and the engines."""

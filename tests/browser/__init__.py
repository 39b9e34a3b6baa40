"""Tests that look at the dashboard with a real browser."""

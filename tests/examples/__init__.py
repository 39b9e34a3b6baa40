"""The example applications, as their readers run them."""

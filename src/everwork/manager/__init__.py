"""Worker classes, and the manager whose processes run them."""

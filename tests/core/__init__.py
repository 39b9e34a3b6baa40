"""The pure core, tested exhaustively and without I/O."""

"""How values are encoded and decoded: JSON and protobuf messages."""

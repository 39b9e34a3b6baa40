"""Generated protobuf code in a descriptor pool of its own, and its conversion to and from the core's values."""

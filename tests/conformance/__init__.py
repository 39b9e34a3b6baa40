"""The suite of the engine contract: every engine passes all of it, without skips."""

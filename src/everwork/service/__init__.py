"""Use cases on top of the engines: create, activate with long poll, settle with group commit, maintenance."""

"""The tests, and the programs among them."""

import os

# Tests start programs while their own gRPC clients are at work. A fork that only executes another program needs none
# of gRPC's support for forks, whose threads in the child run into descriptors that are closed already.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

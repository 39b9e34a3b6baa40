"""The soak: hours of moderate load with faults on a real deployment, and a judge that looks for what grows."""

import os

# This program starts workers while it calls servers; they only ever become other programs, which needs no care of gRPC.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

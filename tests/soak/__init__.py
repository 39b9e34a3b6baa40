"""The soak: hours of moderate load with faults on a real deployment, and a judge that looks for leaks."""

import os

# This program forks workers while it calls servers. They only exec other programs, so gRPC needs no fork support.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

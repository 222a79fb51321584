"""Asks the agent by gRPC's own Python, without any option about names."""

import sys

import grpc

channel = grpc.insecure_channel("unix:" + sys.argv[1])
ask = channel.unary_unary("/apportion.v1.Agent/NodeState")
# More than once: later requests name what the first one said.
for _ in range(3):
    assert ask(b"", timeout=20), "an empty answer"
print("OK")

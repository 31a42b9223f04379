"""The wire: generated stubs, translation to and from core, channel options, the status table."""

import os

# gRPC would restart its threads in every forked child. We never use a channel in one, and with
# them a child that only wants to start another program dies: Spark could not start its JVM from a
# process that has a Danube client. Read by gRPC when it is first imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

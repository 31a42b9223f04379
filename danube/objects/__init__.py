"""Object stores: a synced local directory, memory, and faults in front of either.

Everything that is not a journal segment goes through :class:`danube.core.stores.ObjectStore`.
Buckets join here; whatever implements the protocol inherits its conformance suite.
"""

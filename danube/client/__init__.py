"""The client room: producers, consumers, readers and administration, asyncio and blocking.

Applications import from ``danube``; this package's modules are its inside.
"""

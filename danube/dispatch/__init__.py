"""Subscriptions as pure state machines: events in, decisions out. No I/O, no clock, no asyncio."""

"""Questions about rolling messages into tables."""

"""The wire: generated stubs, translation to and from core, channel options, the status table."""

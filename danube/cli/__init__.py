"""The ``danube`` command: one file per group of commands, everything heavy imported on use."""

"""The journal: one write-ahead log per broker process; one sync pays for all its topics."""

"""Questions about the Spark source and sink."""

"""The demo: a year of flights through producer, broker, table, Spark and back into a topic."""

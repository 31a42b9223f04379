"""Danube for Spark."""

"""Danube topics as a Spark sink: exactly-once streaming append, and batch append.

Tasks stage frames at partition owners, durable and invisible; the driver's commit makes them
visible all at once. Nothing heavy is imported here.
"""

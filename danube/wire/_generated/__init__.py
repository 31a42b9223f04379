"""Stubs generated from proto/ by scripts/generate_stubs.py; never edited by hand."""

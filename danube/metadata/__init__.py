"""Metadata: small strongly consistent stores, and the catalog of typed records on top of them."""

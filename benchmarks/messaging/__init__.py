"""Questions about publishing and consuming."""

"""What our figures are compared with: the same work without a broker's logic around it."""

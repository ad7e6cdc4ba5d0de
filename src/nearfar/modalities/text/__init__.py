"""Text as symbols: readers, masked views, scores."""

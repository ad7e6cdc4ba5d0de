"""Everything that knows how many processes there are: collectives, batch norm, sharding."""

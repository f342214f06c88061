"""What each layer of a model had of the messages: bytes and densities, from the records of buckets."""

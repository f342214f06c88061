"""What every node did when, step by step: from a run's records to spans, and from spans to a trace file."""

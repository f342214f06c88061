"""Traces of a job's messages: recorded from runs, played again, and exchanged with Chakra."""

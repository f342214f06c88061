"""Runs of somebody else's command: what is known of their steps, as tables and figures."""

"""Optional extension."""

"""A job that is somebody else's, on certified links: ``testbed exec``."""

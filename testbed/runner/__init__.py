"""One ``testbed run``: nodes are brought up, given one algorithm after the other, listened to,
judged."""

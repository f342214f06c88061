"""How controllers answer when their link changes, and how far they stay behind the best that could be done."""

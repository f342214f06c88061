"""Worker and server roles, tasks (data, model, optimizer) and the pacing of computation."""

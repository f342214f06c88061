"""Messages of jobs: who sent whom how much and what that waited for; files of it, and nodes that send it again."""

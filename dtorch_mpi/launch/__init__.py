"""How a job starts: the launcher, the checks at start-up, the place of each worker."""

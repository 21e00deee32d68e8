"""What exactly-once results cost, and what failures and restarts do."""

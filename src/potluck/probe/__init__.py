"""What this machine has and what it can really do."""

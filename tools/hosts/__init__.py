"""Makes the descriptions of hosts that come with Potluck, from what others publish."""

"""The one command, and what it shows."""

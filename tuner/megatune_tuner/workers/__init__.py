"""Processes that may hang or crash without taking the campaign along."""

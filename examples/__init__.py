"""Runnable from the repository's root: ``python -m examples.demo``."""

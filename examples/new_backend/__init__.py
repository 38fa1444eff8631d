"""A backend from nothing: a toy engine, and all that logitport needs to act in it."""

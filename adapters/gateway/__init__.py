"""The way between a client and an engine: what carries specs, checks them and answers."""

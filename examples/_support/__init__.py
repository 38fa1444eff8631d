"""Support code for the examples: servers that clean up, a small model, engines without a GPU."""

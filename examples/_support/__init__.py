"""What the examples stand on: servers that clean up, a small model, engines without a GPU."""

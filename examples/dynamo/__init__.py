"""Dynamo with specs: a worker, and a deployment for it (``make demo-dynamo``)."""

"""Dynamo with specs: a worker, and a deployment to try it in (``make demo-dynamo``)."""

"""Gateways that put specs into their tenants' requests; ``docs/deployment.md`` has the rest."""

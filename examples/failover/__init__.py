"""A proxy that continues a reply at another server: ``python -m examples.failover``."""

"""Prefill on one vLLM server, decode on another: ``python -m examples.disaggregated``."""

"""Specs behind Ray Serve LLM: ``python -m examples.ray_serve``."""

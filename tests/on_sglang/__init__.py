"""Tests on SGLang, in an environment of its own: ``make test-sglang``."""

"""Tests on real vLLM engines, with a real model, under the V1 model runner."""

"""Hooks that give requests specs from configuration, without any code."""

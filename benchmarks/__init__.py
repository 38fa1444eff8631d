"""Benchmarks of a step, against other projects' processors on the same tensors.

``python -m benchmarks`` measures and writes ``benchmarks/results/``. Compare ratios, not times.
"""

"""What a step costs, beside what others' processors cost on the same tensors.

``python -m benchmarks`` measures and writes ``benchmarks/results/``. What counts are the ratios.
"""

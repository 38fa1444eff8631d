"""All checks and measurements on a GPU in one command: ``python -m benchmarks.gpu``.

It is made for a few minutes on a machine that has PyTorch, Triton and the test tools, but neither
vLLM nor a network. ``make gpu-wheels`` collects the rest beforehand; see ``CONTRIBUTING.md``.
"""

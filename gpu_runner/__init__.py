"""The data plane: a supervisor that takes calls, and executors (child processes) that run them.

`python -m gpu_runner` starts one runner. Only `gpu_runner.executor` may import torch.
"""

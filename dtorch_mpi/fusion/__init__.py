"""Kernels that stand for several operators, compiled by PyTorch's inductor while the job runs.

spec: what a kernel does, in plain data. kernels: those of this process, from a cache on disk or
from compile_process. agreement: which of them every worker has. compiler: the program that the
compile process runs. What they are made for is up to passes/fusion.py.
"""

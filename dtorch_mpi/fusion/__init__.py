"""Several pointwise operators as one kernel, compiled by PyTorch's inductor while the job runs.

groups: which operators of a window. spec: what their kernel does, in plain data. kernels: the
kernels of this process, from a cache on disk or from compile_process. agreement: which of them
every worker has. compiler: the program that the compile process runs.
"""

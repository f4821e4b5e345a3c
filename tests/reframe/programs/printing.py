"""Prints its arguments, a line each, and ends with the exit code of --exit. Needs no workers."""

import argparse
import os
import sys

parser = argparse.ArgumentParser()
parser.add_argument("lines", nargs="*")
parser.add_argument("--exit", type=int, default=0)
arguments = parser.parse_args()
if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")) == "0":
    print(*arguments.lines, sep="\n")
sys.exit(arguments.exit)

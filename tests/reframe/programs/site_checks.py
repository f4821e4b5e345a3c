"""A site's checks, by subclassing: each is named after what ReFrame must say of it.

Loaded by test_reframe_checks.py. The programs print what they are told, so nothing but the base
classes is at work.
"""

from pathlib import Path

import reframe as rfm
from dtorch_checks import DtorchBenchmark, DtorchCheck
from reframe.core.builtins import parameter

PRINTING = str(Path(__file__).with_name("printing.py"))
# Words of a shell.
FIGURES = [PRINTING, "'site.rate=50 op/s'", "'site.time=2e-3 s'", "'2 figures measured'"]


class SiteCheck(DtorchCheck):
    num_workers = parameter([2])
    marker = r"^{workers} workers agree$"


class SiteBenchmark(DtorchBenchmark):
    num_workers = parameter([2])
    executable_opts = FIGURES


@rfm.simple_test
class Passes(SiteCheck):
    executable_opts = [PRINTING, "'2 workers agree'"]


@rfm.simple_test
class FailsSanityByExitCode(SiteCheck):
    executable_opts = [PRINTING, "'2 workers agree'", "--exit", "3"]


@rfm.simple_test
class FailsSanityWithoutMarker(SiteCheck):
    executable_opts = [PRINTING, "'3 workers agree'"]


@rfm.simple_test
class PassesWithinReference(SiteBenchmark):
    figures = ("site.time",)
    reference = {"local:ranks": {"site.rate": (52, -0.05, None, "op/s")}}


@rfm.simple_test
class FailsPerformanceBelowReference(SiteBenchmark):
    reference = {"local:ranks": {"site.rate": (60, -0.05, None, "op/s")}}


@rfm.simple_test
class FailsSanityWithoutFigure(SiteBenchmark):
    figures = ("site.bandwidth",)


@rfm.simple_test
class FailsSanityByReferenceOfNoFigure(SiteBenchmark):
    reference = {"*": {"site.rates": (1, -0.05, None, "op/s")}}


@rfm.simple_test
class FailsSanityWithoutLastLine(SiteBenchmark):
    executable_opts = FIGURES[:-1]

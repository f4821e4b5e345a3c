"""Assertions of the modules that the tests share show their values too."""

import pytest

pytest.register_assert_rewrite("simulate")

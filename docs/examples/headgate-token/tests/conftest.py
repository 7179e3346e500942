"""Checks of a package that are not in a test file say what they compared, too."""

import pytest

pytest.register_assert_rewrite("broker.testing")

"""What tests of the commands that read journals share."""

from tests.analysis.conftest import log

__all__ = ["log"]

"""What tests of commands share."""

from tests.cli.conftest import refused  # noqa: F401

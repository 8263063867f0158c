"""Haystack sends no telemetry from tests."""

import os

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

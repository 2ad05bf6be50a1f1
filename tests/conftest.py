"""Settings of the whole suite."""

from hypothesis import settings

settings.register_profile("suite", deadline=None, derandomize=True, max_examples=60)  # the same cases on every machine
settings.load_profile("suite")

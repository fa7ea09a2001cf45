"""The engine-side library: vectors, blends, extraction, and the plugins that steer inference engines.

Knows nothing of Django; installs alone on an engine machine.
"""

__version__ = "0.1.0"

"""Transactional, versioned storage for Zarr arrays, with a data pipeline on Apache Spark.

The names here are the public surface, a growing superset of the `icechunk` package's. They are
listed in the stub beside this file, and imported when they are first used.
"""

import lazy_loader

from icefloe.logs import initialize_logs
from icefloe.version import VERSION

__version__ = VERSION
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

initialize_logs()

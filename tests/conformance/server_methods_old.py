# requirements: sdk-old
"""Every public method once more, with an SDK of the JSON generation."""

import os
import runpy

runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "server_methods.py"))

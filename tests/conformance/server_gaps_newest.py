# requirements: sdk-newest
"""Numbers that are lost inside the newest SDK known when this was written."""

import os
import runpy

runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "server_gaps.py"))

# requirements: sdk-newest
"""The official command line once more, of the newest SDK known when this was written."""

import os
import runpy

runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "server_cli.py"))

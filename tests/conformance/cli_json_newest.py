# requirements: sdk-newest
"""The same comparison with the newest SDK known when this was written."""

import os
import runpy

runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "cli_json.py"))

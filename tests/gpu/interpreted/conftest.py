"""These tests run in a process of their own, in which Triton's interpreter is chosen before anything imports Triton."""

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]

"""How long tests wait for what may never come. These limits catch hangs, not slowness.

No machine is so busy that a right program meets them. A test as a whole has `timeout` of
pyproject.toml.
"""

COMMAND = 300  # seconds for a command, an answer or a page

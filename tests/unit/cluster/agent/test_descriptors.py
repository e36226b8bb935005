from __future__ import annotations

import subprocess
import sys

import pytest

_CHILD = """
import resource, sys
from potluck.cluster.agent.descriptors import raise_descriptor_limit
soft, hard, most = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(raise_descriptor_limit(most), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("soft", "hard", "most", "expected"),
    [
        (128, 512, 65_536, 512),  # the hard limit bounds it
        (128, 512, 256, 256),  # and so does what is asked for
        (400, 512, 256, 400),  # a limit is never lowered
        (128, 128, 65_536, 128),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_it_may_be(
    soft: int, hard: int, most: int, expected: int
) -> None:
    command = [sys.executable, "-c", _CHILD, str(soft), str(hard), str(most)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output.split() == [str(expected), str(expected), str(hard)]

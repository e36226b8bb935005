"""``potluck.cli.serve`` has the options of both commands."""

from __future__ import annotations

import inspect

from potluck.cli.cluster import deploy
from potluck.cli.serve import serve
from potluck.cli.up import up


def test_serve_has_the_options_of_up_and_of_deploy() -> None:
    of_both = {**inspect.signature(deploy).parameters, **inspect.signature(up).parameters}
    assert set(inspect.signature(serve).parameters) == set(of_both) - {"json", "no_http"}
    for name, parameter in inspect.signature(serve).parameters.items():
        assert parameter.default == of_both[name].default

"""What comes with Potluck is what its sources say: auditwheel's policies, and the table's rows."""

from __future__ import annotations

from dataclasses import replace

from potluck.portability.hosts.shipped import load_shipped_host, shipped_hosts
from tools.hosts.distributions import distributions, musl_distributions
from tools.hosts.policies import describe_policies

MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def test_policies_are_auditwheels() -> None:
    described = {host.name: host for host in describe_policies()}
    shipped = {name for name in shipped_hosts() if name.startswith("manylinux_")}
    assert len(shipped) > 20
    assert shipped <= described.keys()
    for name in shipped:
        host = load_shipped_host(name)
        assert replace(host, origin="") == replace(described[name], origin="")


def test_every_distribution_of_the_table_is_there_and_no_other() -> None:
    named = {
        f"{each.name}-{MACHINES[architecture]}"
        for each in distributions()
        for architecture in (*each.architectures, *each.cross)
    }
    named |= {
        f"{each.name}-{MACHINES[architecture]}"
        for each in musl_distributions()
        for architecture in each.architectures
    }
    files = {name for name, file in shipped_hosts().items() if file == f"{name}.json"}
    assert named == {name for name in files if not name.startswith("manylinux_")}

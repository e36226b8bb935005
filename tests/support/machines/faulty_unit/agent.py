"""``potluck`` on a machine that has the played GPU and no other. Its unit comes back soon."""

from __future__ import annotations

from support.machines.faulty_unit import detector_report, spec

from potluck.cluster.agent import unit_health
from potluck.engines import backends
from potluck.probe import all_detectors
from potluck.probe.detector import Detector
from potluck.types import unit

backends.BACKENDS = (backends.BACKENDS[0], spec())
all_detectors.DETECTORS = (Detector(name="faulty", find=lambda _: detector_report()),)
unit.PAUSES_SECONDS = (1.0, 1.0, 1.0)
unit_health.MAX_FAULTS = 100

if __name__ == "__main__":
    from potluck.cli.main import main  # what it imports keeps the tables from above

    main()

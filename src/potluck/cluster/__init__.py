"""One model over several machines: membership, edges, workers, coordinators and agents."""

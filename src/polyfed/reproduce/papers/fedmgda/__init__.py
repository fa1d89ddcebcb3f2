"""Items of: FedMGDA+."""

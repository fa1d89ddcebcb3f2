"""Items of: FedCMOO."""

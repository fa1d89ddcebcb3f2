"""What goes wrong on purpose: attacks at clients, lost replies, slow networks."""

"""What stands on the client's side: the runner of its work, and the device it runs on."""

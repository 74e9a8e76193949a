"""Plan and target to one function, and that function to a machine-code image."""

"""What lies beside the line profile, attribute, recommend."""

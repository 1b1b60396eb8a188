"""The exposed communication of an update, with the coefficients beside the code."""

"""Exposed communication of an update, with the coefficients beside."""

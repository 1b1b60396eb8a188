"""What the predictor says of a job: one prediction, ranked plans, files for programs and for SkyPilot."""

"""What the predictor says about a job: one prediction, ranked plans, files for programs and for SkyPilot."""

"""The jobs of `ddlprof elastic`, their speeds as measured, and how they scale with GPUs."""

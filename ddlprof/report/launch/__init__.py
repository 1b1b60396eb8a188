"""A plan as the file that it is launched with: one file for each framework that a layout is written for, and in
`machines` one for each engine that asks for machines and starts the job there."""

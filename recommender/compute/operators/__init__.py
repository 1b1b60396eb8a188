"""Seconds of single operators on a GPU, from its data sheet and learned efficiencies; numpy only."""

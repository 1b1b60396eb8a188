"""What the zeros of a training make unnecessary, and what of that can be had."""

"""Joined calls: those of a batched function, whichever path brought them, share one execution."""

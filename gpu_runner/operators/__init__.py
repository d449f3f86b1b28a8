"""What operators ask of this runner: to drain, or how a call stands."""

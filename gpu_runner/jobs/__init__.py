"""Jobs on their way through this runner: claimed, held, renewed, recorded."""

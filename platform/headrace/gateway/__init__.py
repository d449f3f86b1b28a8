"""The gateway: HTTP in front, runners behind. It never imports user code, and never torch."""

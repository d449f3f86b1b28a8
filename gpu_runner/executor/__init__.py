"""The executor: a child process that loads models and runs functions. The only place for torch."""

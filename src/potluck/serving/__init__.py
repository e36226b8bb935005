"""Connect a scheduler to a pipeline of stages, wherever the stages are."""

"""What an experiment's graph is like, and what that means for its settings; nothing is trained. See docs/inspect.md."""

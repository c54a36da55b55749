"""Training of weir's models: character-level language models that pool their own input."""

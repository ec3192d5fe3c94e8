"""Scripts that run in AppWorld's own virtual environment; nothing here is imported by the rest of the project."""

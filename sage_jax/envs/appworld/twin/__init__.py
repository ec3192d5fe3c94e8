"""A world of our own for the AppWorld engine: people, their data, tasks, checks and expert solutions."""

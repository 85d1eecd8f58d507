"""Public classes: repositories, sessions, and the values that they return."""

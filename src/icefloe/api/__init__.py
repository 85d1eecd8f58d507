"""What users hold: repositories, sessions and the values they give."""

"""The catalogue: repositories by name, kept by a service that also vends their credentials."""

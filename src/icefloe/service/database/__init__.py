"""What the service remembers: tables, transactions, sealed secrets and the audit."""

"""The database of the service: tables, transactions, sealed secrets and the audit."""

"""The rules of the service: pure functions over records, without a framework or a database."""

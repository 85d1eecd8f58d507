"""The service over HTTP: the JSON API."""

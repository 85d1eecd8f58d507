"""Running a service: the server, the work of its operators, and a demo."""

"""A model that answers while one types: in a browser through a server, in a notebook through its kernel."""

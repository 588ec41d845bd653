"""What the tiny configuration of a family needs beside being smaller."""

SETTINGS = {}

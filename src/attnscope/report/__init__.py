"""Records by which every verb reports, how they are shown, their language, and the signature of a result."""

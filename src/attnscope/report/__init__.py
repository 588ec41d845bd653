"""What every verb reports with: its records, how they are shown, their language, and what a result depends on."""

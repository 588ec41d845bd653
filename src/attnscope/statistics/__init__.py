"""Statistics of measurements by documents: intervals, tests, false discovery rates, agreement."""

"""Are attention weights an explanation? Tests of one head's weights, and contributions that weights do not show."""

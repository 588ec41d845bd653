"""Why a head looks where it looks: weights, inputs and positions taken apart."""

from ._adversarial import adversarial_test
from ._agreement import agreement_test
from ._erasure import FRACTIONS, ORDERS, erasure_test
from ._replaced import frozen_test, permutation_test, uniform_test

__all__ = [
    "FRACTIONS",
    "ORDERS",
    "adversarial_test",
    "agreement_test",
    "erasure_test",
    "frozen_test",
    "permutation_test",
    "uniform_test",
]

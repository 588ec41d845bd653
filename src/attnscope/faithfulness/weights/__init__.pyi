from ._adversarial import adversarial_test
from ._agreement import agreement_test
from ._erasure import FRACTIONS, ORDERS, erasure_test
from ._frozen import frozen_test
from ._replaced import permutation_test, same_size, uniform_test
from ._same_output import same_output_test

__all__ = [
    "FRACTIONS",
    "ORDERS",
    "adversarial_test",
    "agreement_test",
    "erasure_test",
    "frozen_test",
    "permutation_test",
    "same_output_test",
    "same_size",
    "uniform_test",
]

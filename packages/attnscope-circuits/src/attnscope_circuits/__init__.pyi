from .verbs.attribute import attribute as attribute
from .verbs.circuits import circuits as circuits
from .verbs.edges import edges as edges

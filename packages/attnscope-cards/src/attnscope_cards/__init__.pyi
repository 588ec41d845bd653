from .press import kvpress as kvpress
from .verbs.card import card as card

from .verbs.relations import relations as relations

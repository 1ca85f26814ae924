"""The folder that a program's search path begins with, for the module ``sitecustomize`` in it."""

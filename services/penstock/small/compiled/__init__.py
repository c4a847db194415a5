"""Gradients, estimates and steps of small networks in compiled code. Only a learner imports them."""

from penstock.machine import compiled_code

compiled_code.make_writable()

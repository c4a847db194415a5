"""Gradients, estimates and steps of small networks in compiled code. Only a learner imports them.

`passes` computes the network, `row_losses` the loss, and `gradients` both in turn. Python calls them by `minibatch`.
"""

from penstock.machine import compiled_code

compiled_code.make_writable()

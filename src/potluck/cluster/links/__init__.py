"""How fast the ways to other nodes are: measured by a few frames, within a strict budget.

``exchange`` is what the two nodes send each other, ``budget`` how much of it is allowed,
``figures`` what follows from several measurements, ``schedule`` who is measured when. Only
``exchange`` touches a connection and a clock; the others are pure.
"""

"""Connections that carry steps from stage to stage: frames over mutual TLS, one way each.

The side that computes next listens, the side that sends connects. The layout of a frame is in
``frames``, what the two sides say to each other first in ``hello``.
"""

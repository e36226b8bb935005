"""Connections that carry steps from stage to stage: frames over mutual TLS, one way each.

The receiver listens, and the sender connects. ``frames`` defines the layout of a frame, and the
handshake.
"""

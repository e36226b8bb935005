"""Descriptions of hosts: how they are made, written, read and shipped."""
